-- sweep_keys: of the next keys after this one, those with parked lanes and room that no pass will use.
-- A process may die between a finish and its hand-over; time does not open such a key. The slice begins with the next
-- key that lanes are parked on; the number of lanes on one costs nothing. A key that is full is left to its next
-- release. Another has room if it has enough for the call in front, or if that one costs more than it ever has: the
-- call must wait alone then. A group has room if one of its members has. One whose override has run out is the tick's,
-- as all that time opens. Relies on the indexes lane_parked, slot_key and call_waiting.
WITH slice AS MATERIALIZED (
    SELECT key.id, key.name, key.is_group, key.opens_at,
           (key.opens_at IS NULL OR key.is_group) AND NOT key.is_paused
           AND (key.override_until IS NULL OR key.override_until > clock_timestamp()) AS is_shut,
           {{limit_in_force(key.override_until > clock_timestamp(), key, concurrency)}} AS concurrency,
           {{limit_in_force(key.override_until > clock_timestamp(), key, rate_limit)}} AS rate_limit,
           {{limit_in_force(key.override_until > clock_timestamp(), key, per_worker)}} AS per_worker
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id >= (SELECT lane.parked_on_id
                        FROM dispatcher_lane AS lane
                       WHERE lane.parked_on_id > %(after)s::bigint
                       ORDER BY lane.parked_on_id
                       LIMIT 1)
     ORDER BY key.id
     LIMIT %(most)s::int
), shut AS MATERIALIZED (
    SELECT slice.id, slice.name, slice.is_group, slice.opens_at, slice.concurrency, slice.per_worker, slice.rate_limit,
           front.id AS lane_id
      FROM slice
     CROSS JOIN LATERAL {{first_parked_lane(slice.id)}} AS front
     WHERE slice.is_shut
), held AS MATERIALIZED (
    SELECT shut.id, shut.name, shut.is_group, shut.opens_at, shut.concurrency, shut.per_worker, shut.rate_limit,
           shut.lane_id,
           COALESCE(slots.held, 0) AS cost
      FROM shut
      LEFT JOIN ({{slots_of(ARRAY(SELECT id FROM shut))}}) AS slots ON slots.key_id = shut.id
)
SELECT ARRAY(SELECT held.id
               FROM held
              CROSS JOIN LATERAL (
                    SELECT COALESCE((SELECT (call.costs ->> held.name)::int
                                       FROM dispatcher_callqueue AS call
                                      WHERE {{waits_in(call, held.lane_id)}}
                                      ORDER BY call.position
                                      LIMIT 1), 1) AS cost) AS head
              WHERE NOT COALESCE({{parked_by_worker_limit(held.per_worker, held.lane_id)}}, false)
                AND (held.concurrency IS NULL
                     OR (held.cost < held.concurrency
                         AND (held.cost + head.cost <= held.concurrency
                              OR head.cost > LEAST(held.concurrency, held.rate_limit))))
                AND CASE WHEN held.is_group THEN {{group_has_room(held, head.cost, clock_timestamp())}}
                         ELSE true END) AS stranded,
       CASE WHEN count(*) = %(most)s::int THEN max(id) ELSE 0 END AS last
  FROM slice
