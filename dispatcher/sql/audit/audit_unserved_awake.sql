-- audit_unserved_awake: of each queue the lane that is awake and next, with its first call: if it stays so, no pass is
-- made.
-- One that lets a lane of higher priority go first, awake, held, or parked on a key that both spend, waits by right.
-- Lanes that are awake are few. Relies on the indexes lane_awake, lane_held, lane_parked and call_waiting.
WITH {{clock}}, front AS MATERIALIZED (
    SELECT DISTINCT ON (lane.queue) lane.id, lane.queue, lane.priority, lane.key_ids, head.id AS call_id, head.version
      FROM clock
     CROSS JOIN dispatcher_lane AS lane
     CROSS JOIN LATERAL {{first_call_in(lane.id)}} AS head
     WHERE lane.is_awake AND {{not_expired(head, clock.now)}}
     ORDER BY lane.queue, lane.priority DESC, lane.served_at, lane.id
)
SELECT 'lane ' || front.id AS what, front.id::text AS target, front.call_id || ' ' || front.version AS version,
       json_build_object('queue', front.queue, 'priority', front.priority, 'first_call', front.call_id) AS facts,
       count(*) OVER () AS total
  FROM front
 WHERE (SELECT held.id
          FROM dispatcher_lane AS held
         WHERE held.is_held AND held.queue = front.queue AND held.priority > front.priority
         LIMIT 1) IS NULL
   AND NOT EXISTS (SELECT
                     FROM (SELECT unnest(front.key_ids)
                            UNION ALL
                           SELECT key.id
                             FROM dispatcher_ratelimitkey AS key
                            WHERE key.name = 'queue:' || front.queue) AS spent (key_id)
                    WHERE (SELECT ahead.id
                             FROM dispatcher_lane AS ahead
                            WHERE ahead.parked_on_id = spent.key_id AND ahead.priority > front.priority
                              AND ahead.queue = front.queue
                            LIMIT 1) IS NOT NULL)
 ORDER BY front.id
 LIMIT %(most)s::int
