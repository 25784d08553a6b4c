-- audit_queue_unserved: queues that hold lanes up, or have calls on the way, and that no live worker serves.
-- Hops from queue to queue on the indexes lane_held and call_in_flight.
WITH RECURSIVE {{clock}}, {{queues_with_held_lanes(held)}}, {{queues_in_flight(flown)}}
SELECT 'queue ' || wanted.queue AS what, wanted.queue AS target, '' AS version,
       json_build_object('served_until', (SELECT max(worker.serves_until)
                                            FROM dispatcher_worker AS worker
                                           WHERE wanted.queue = ANY (worker.queues))) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN (SELECT held.queue FROM held UNION SELECT flown.queue FROM flown) AS wanted (queue)
 WHERE %(needs_worker)s::bool AND NOT {{queue_has_worker(wanted.queue, clock.now)}}
   AND {{queue_delivery(wanted.queue)}} <> 'http'
 ORDER BY wanted.queue
 LIMIT %(most)s::int
