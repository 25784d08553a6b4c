-- audit_unserved_parked: keys that could let the first of the calls parked on them go, which neither time nor a release
-- will open.
-- They have room by their concurrency and no time at which they open, or the call costs more than their concurrency; or
-- that time has passed without a pass. A group could if one of its members has room.
-- Hops from key to key on the index lane_parked, so the number of lanes that are parked on one costs nothing.
-- Relies on slot_key and call_waiting.
WITH RECURSIVE {{clock}}, {{keys_named_by(dispatcher_lane, parked_on_id)}}, closed AS MATERIALIZED (
    SELECT key.id, key.name, key.is_group, key.opens_at, held.cost AS held,
           {{limit_in_force(key.override_until > clock.now, key, concurrency)}} AS concurrency,
           {{limit_in_force(key.override_until > clock.now, key, per_worker)}} AS per_worker
      FROM clock
     CROSS JOIN hop
      JOIN dispatcher_ratelimitkey AS key ON key.id = hop.key_id
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(slot.cost), 0) AS cost
             FROM dispatcher_slot AS slot
            WHERE slot.key_id = key.id) AS held
     WHERE NOT key.is_paused AND (key.blocked_until IS NULL OR key.blocked_until <= clock.now)
       AND (key.is_group OR key.opens_at IS NULL OR key.opens_at < clock.now - %(late)s::interval)
)
SELECT 'key ' || closed.name AS what, closed.id::text AS target, head.id || ' ' || head.version AS version,
       json_build_object('lane', front.id, 'first_call', head.id, 'in_flight', closed.held,
                         'concurrency', closed.concurrency, 'opens_at', closed.opens_at) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN closed
 CROSS JOIN LATERAL {{first_parked_lane(closed.id)}} AS front
 CROSS JOIN LATERAL (
       SELECT call.id, call.expires_at, COALESCE((call.costs ->> closed.name)::int, 1) AS cost,
              call.xmin::text AS version
         FROM dispatcher_callqueue AS call
        WHERE {{waits_in(call, front.id)}}
        ORDER BY call.position
        LIMIT 1) AS head
 WHERE NOT ({{parked_by_worker_limit(closed.per_worker, front.id)}})
   AND ((closed.opens_at IS NOT NULL AND NOT closed.is_group) OR closed.concurrency IS NULL
        OR closed.held + head.cost <= closed.concurrency
        OR (closed.concurrency > 0 AND head.cost > closed.concurrency))
   AND CASE WHEN closed.is_group
            THEN closed.opens_at < clock.now - %(late)s::interval
                 OR {{group_has_room(closed, head.cost, clock.now)}}
            ELSE true END
   AND {{not_expired(head, clock.now)}}
 ORDER BY closed.name, closed.id
 LIMIT %(most)s::int
