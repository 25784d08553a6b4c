-- waiting_queues: the direct queues that hold lanes with calls while a worker of theirs is idle. Expected: none.
-- Hops from queue to queue on the index lane_held, so the number of lanes that one has held costs nothing.
WITH RECURSIVE hop AS (
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
  FROM hop
  JOIN dispatcher_queue AS queue ON queue.name = hop.queue AND queue.delivery = 'direct'
 WHERE EXISTS (SELECT FROM dispatcher_feed AS feed WHERE feed.idle_at IS NOT NULL AND hop.queue = ANY (feed.queues))
 ORDER BY hop.queue
