-- due_queues: the queues that have held lanes, and could let them go on: they are served, and have room on the way.
-- Hops from queue to queue on the index lane_held, so the number of lanes that one has held costs nothing.
WITH RECURSIVE {{clock}}, hop AS (
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
 WHERE {{queue_is_published(hop.queue, clock.now)}}
   AND ({{queue_unclaimed(hop.queue)}}) < %(ahead)s::int
 ORDER BY hop.queue
