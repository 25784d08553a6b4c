-- audit_queue_unserved: queues with lanes that are ready, or with calls on the way, that no live worker serves.
-- Hops from queue to queue on the indexes lanesite_place and call_in_flight.
WITH RECURSIVE {{clock}}, {{hops(ready, dispatcher_lanesite, queue, place = 0, '', true)}},
{{hops(flown, dispatcher_callqueue, queue, {{is_in_flight}}, '', true)}}
SELECT 'queue ' || wanted.queue AS what, wanted.queue AS target, '' AS version,
       json_build_object('served_until', (SELECT max(worker.serves_until)
                                            FROM dispatcher_worker AS worker
                                           WHERE wanted.queue = ANY (worker.queues))) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN (SELECT ready.value FROM ready UNION SELECT flown.value FROM flown) AS wanted (queue)
 WHERE %(needs_worker)s::bool AND NOT {{queue_has_worker(wanted.queue, clock.now)}}
   AND {{queue_delivery(wanted.queue)}} <> 'http'
 ORDER BY wanted.queue
 LIMIT %(most)s::int
