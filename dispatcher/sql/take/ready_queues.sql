-- ready_queues: the queues that have ready lanes and whose calls reach their workers in one of these ways.
-- Hops from queue to queue on the index lanesite_place, so the number of lanes costs nothing.
WITH RECURSIVE {{hops(hop, dispatcher_lanesite, queue, place = 0, '', true)}}
SELECT hop.value
  FROM hop
 WHERE {{queue_delivery(hop.value)}} = ANY (%(deliveries)s::text[])
 ORDER BY hop.value
