-- audit_unserved_ready: queues with a lane that is ready, and with a worker that could take its first call: one that is
-- idle, or of the broker's queues a live one, while fewer calls are on their way than may be.
-- Hops from queue to queue on the index lanesite_place, so the number of these lanes costs nothing.
-- Relies on call_waiting and call_in_flight.
WITH RECURSIVE {{clock}}, {{queues_ready(hop)}}
SELECT 'queue ' || hop.queue AS what, hop.queue AS target,
       front.lane_id || ' ' || head.id || ' ' || head.version AS version,
       json_build_object('lane', front.lane_id, 'first_call', head.id, 'delivery', queue.delivery) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN hop
 CROSS JOIN LATERAL (SELECT {{queue_delivery(hop.queue)}} AS delivery) AS queue
 CROSS JOIN LATERAL (
       SELECT site.lane_id
         FROM dispatcher_lanesite AS site
        WHERE site.place = 0 AND site.queue = hop.queue
        ORDER BY site.priority DESC, site.served_at, site.lane_id
        LIMIT 1) AS front
 CROSS JOIN LATERAL {{first_call_in(front.lane_id)}} AS head
 WHERE {{not_expired(head, clock.now)}}
   AND CASE WHEN queue.delivery = 'broker'
            THEN (NOT %(needs_worker)s::bool OR {{queue_has_worker(hop.queue, clock.now)}})
                 AND ({{queue_unclaimed(hop.queue)}}) < %(ahead)s::int
            ELSE EXISTS (SELECT
                           FROM dispatcher_process AS process
                           JOIN dispatcher_worker AS worker ON worker.id = process.worker_id
                          WHERE process.idle_at IS NOT NULL AND hop.queue = ANY (process.queues)
                            AND worker.serves_until > clock.now AND worker.stopped_at IS NULL) END
 ORDER BY hop.queue
 LIMIT %(most)s::int
