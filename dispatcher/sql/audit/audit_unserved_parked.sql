-- audit_unserved_parked: keys with room for the first call of a lane that is parked on them, or that are gone, without
-- a note: no trip would look at them.
-- By right such a lane waits for its worker (`kept_until`), behind one that does, or behind a lane that is ready and
-- spends the key.
-- Hops from key to key on the index lanesite_place, so the number of lanes that are parked on one costs nothing.
-- Relies on slot_key, start_key and call_waiting.
WITH RECURSIVE {{clock}}, {{keys_named_by(dispatcher_lanesite, place)}}, front AS MATERIALIZED (
    SELECT hop.key_id, key.name, first.lane_id, head.id AS call_id, head.version, head.cost
      FROM clock
     CROSS JOIN hop
      LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = hop.key_id
     CROSS JOIN LATERAL (
           SELECT site.lane_id
             FROM dispatcher_lanesite AS site
            WHERE site.place = hop.key_id AND site.kept_until IS NULL
            ORDER BY site.queue, site.priority DESC, site.served_at, site.lane_id
            LIMIT 1) AS first
     CROSS JOIN LATERAL (
           SELECT call.id, call.expires_at, COALESCE((call.costs ->> key.name)::int, 1) AS cost,
                  call.xmin::text AS version
             FROM dispatcher_callqueue AS call
            WHERE {{waits_in(call, first.lane_id)}}
            ORDER BY call.position
            LIMIT 1) AS head
     WHERE hop.key_id > 0 AND {{not_expired(head, clock.now)}}
)
SELECT 'key ' || COALESCE(front.name, front.key_id::text) AS what, front.key_id::text AS target,
       front.lane_id || ' ' || front.call_id || ' ' || front.version AS version,
       json_build_object('lane', front.lane_id, 'first_call', front.call_id, 'cost', front.cost,
                         'is_gone', front.name IS NULL) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN front
  LEFT JOIN LATERAL ({{key_for(front.key_id, front.cost, clock.now)}}) AS stopping ON true
 CROSS JOIN LATERAL (
       SELECT front.key_id || {{@members_of}}(CASE WHEN stopping.members > 0 THEN front.name END) AS ids) AS opening
 WHERE COALESCE(stopping.has_room, true) AND NOT {{is_noted(key_id, opening.ids, clock.now)}}
   AND NOT EXISTS (SELECT
                     FROM dispatcher_lanesite AS site
                     JOIN dispatcher_lane AS lane ON lane.id = site.lane_id
                    WHERE site.place <= 0
                      AND (lane.key_ids @> ARRAY[front.key_id] OR 'queue:' || lane.queue = front.name))
   AND NOT EXISTS (SELECT FROM dispatcher_lanesite AS site
                    WHERE site.place = front.key_id AND isfinite(site.kept_until))
 ORDER BY front.name, front.key_id
 LIMIT %(most)s::int
