-- due_queues: the queues that have held lanes, and could let them go on: they are served, and have room on the way.
-- Hops from queue to queue on the index lane_held, so the number of lanes that one has held costs nothing.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
), hop AS (
    (SELECT lane.queue, 1 AS number
       FROM dispatcher_lane AS lane
      WHERE lane.is_held
      ORDER BY lane.queue
      LIMIT 1)
     UNION ALL
    SELECT next.queue, hop.number + 1
      FROM hop
     CROSS JOIN LATERAL (
           SELECT lane.queue
             FROM dispatcher_lane AS lane
            WHERE lane.is_held AND lane.queue > hop.queue
            ORDER BY lane.queue
            LIMIT 1) AS next
     WHERE hop.number < %(most)s::int
)
SELECT hop.queue AS name
  FROM clock
 CROSS JOIN hop
 WHERE NOT EXISTS (SELECT FROM dispatcher_queue AS other WHERE other.name = hop.queue AND other.delivery <> 'broker')
   AND (NOT %(is_gated)s::bool OR EXISTS (SELECT
                                            FROM dispatcher_worker AS worker
                                           WHERE hop.queue = ANY (worker.queues) AND worker.serves_until > clock.now))
   AND (SELECT count(*)
          FROM (SELECT
                  FROM dispatcher_callqueue AS call
                 WHERE call.queue = hop.queue AND call.state = 'dispatched'
                 LIMIT %(ahead)s::int) AS call) < %(ahead)s::int
 ORDER BY hop.queue
