-- ready_queues: the queues that have ready lanes and whose calls reach their workers in one of these ways.
-- Hops from queue to queue on the index lanesite_place, so the number of lanes costs nothing.
WITH RECURSIVE hop (queue) AS (
    SELECT min(site.queue) FROM dispatcher_lanesite AS site WHERE site.place = 0
     UNION ALL
    SELECT (SELECT min(site.queue) FROM dispatcher_lanesite AS site WHERE site.place = 0 AND site.queue > hop.queue)
      FROM hop
     WHERE hop.queue IS NOT NULL
)
SELECT hop.queue
  FROM hop
 WHERE hop.queue IS NOT NULL
   AND {{queue_delivery(hop.queue)}} = ANY (%(deliveries)s::text[])
 ORDER BY hop.queue
