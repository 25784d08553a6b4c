-- report_unserved: the queues whose calls wait because no live worker serves them, with how many calls wait, up to a
-- bound.
-- Hops from queue to queue on the index lanesite_place. Relies on call_waiting.
WITH RECURSIVE {{hops(hop, dispatcher_lanesite, queue, place = 0, '', true)}}
SELECT hop.value AS name, line.calls AS waiting_count,
       (SELECT max(worker.seen_at)
          FROM dispatcher_worker AS worker
         WHERE hop.value = ANY (worker.queues)) AS worker_seen_at
  FROM hop
 CROSS JOIN LATERAL (
       SELECT count(*) AS calls
         FROM (SELECT
                 FROM dispatcher_lanesite AS site
                -- Lane by lane, or the planner would read all calls to find these.
                CROSS JOIN LATERAL (
                      SELECT
                        FROM dispatcher_callqueue AS call
                       WHERE {{waits_in(call, site.lane_id)}}
                       LIMIT %(most)s::int) AS waiting
                WHERE site.place = 0 AND site.queue = hop.value
                LIMIT %(most)s::int) AS call) AS line
 WHERE line.calls > 0
   AND NOT {{queue_has_worker(hop.value, {{now}})}}
   AND {{queue_delivery(hop.value)}} <> 'http'
 ORDER BY hop.value
