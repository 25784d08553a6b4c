-- report_unserved: the queues whose calls wait because no live worker serves them, with how many calls wait, up to a bound.
-- Hops from queue to queue on the index lane_held. Relies on call_waiting.
WITH RECURSIVE hop AS (
    (SELECT lane.queue
       FROM dispatcher_lane AS lane
      WHERE lane.is_held
      ORDER BY lane.queue
      LIMIT 1)
     UNION ALL
    SELECT next.queue
      FROM hop
     CROSS JOIN LATERAL (
           SELECT lane.queue
             FROM dispatcher_lane AS lane
            WHERE lane.is_held AND lane.queue > hop.queue
            ORDER BY lane.queue
            LIMIT 1) AS next
)
SELECT hop.queue AS name, line.calls AS waiting,
       (SELECT max(worker.seen_at)
          FROM dispatcher_worker AS worker
         WHERE hop.queue = ANY (worker.queues)) AS seen_at
  FROM hop
 CROSS JOIN LATERAL (
       SELECT count(*) AS calls
         FROM (SELECT
                 FROM dispatcher_lane AS lane
                -- Lane by lane, or the planner would read all calls to find these.
                CROSS JOIN LATERAL (
                      SELECT
                        FROM dispatcher_callqueue AS call
                       WHERE call.lane_id = lane.id AND call.state = 'available' AND call.oversized_key_id IS NULL
                       LIMIT %(most)s::int) AS waiting
                WHERE lane.is_held AND lane.queue = hop.queue
                LIMIT %(most)s::int) AS call) AS line
 WHERE line.calls > 0
   AND NOT EXISTS (SELECT
                     FROM dispatcher_worker AS worker
                    WHERE hop.queue = ANY (worker.queues)
                      AND worker.serves_until > COALESCE(%(now)s::timestamptz, clock_timestamp()))
   AND NOT EXISTS (SELECT FROM dispatcher_queue AS other WHERE other.name = hop.queue AND other.delivery = 'http')
 ORDER BY hop.queue
