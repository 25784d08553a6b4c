-- audit_queue_unserved: queues that hold lanes up, or have calls on the way, and that no live worker serves.
-- Hops from queue to queue on the indexes lane_held and call_in_flight.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
), held AS (
    (SELECT lane.queue
       FROM dispatcher_lane AS lane
      WHERE lane.is_held
      ORDER BY lane.queue
      LIMIT 1)
     UNION ALL
    SELECT next.queue
      FROM held
     CROSS JOIN LATERAL (
           SELECT lane.queue
             FROM dispatcher_lane AS lane
            WHERE lane.is_held AND lane.queue > held.queue
            ORDER BY lane.queue
            LIMIT 1) AS next
), flown AS (
    (SELECT call.queue
       FROM dispatcher_callqueue AS call
      WHERE call.state IN ('dispatched', 'active')
      ORDER BY call.queue
      LIMIT 1)
     UNION ALL
    SELECT next.queue
      FROM flown
     CROSS JOIN LATERAL (
           SELECT call.queue
             FROM dispatcher_callqueue AS call
            WHERE call.state IN ('dispatched', 'active') AND call.queue > flown.queue
            ORDER BY call.queue
            LIMIT 1) AS next
)
SELECT 'queue ' || wanted.queue AS what, wanted.queue AS target, '' AS version,
       json_build_object('served_until', (SELECT max(worker.serves_until)
                                            FROM dispatcher_worker AS worker
                                           WHERE wanted.queue = ANY (worker.queues))) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN (SELECT held.queue FROM held UNION SELECT flown.queue FROM flown) AS wanted (queue)
 WHERE %(is_gated)s::bool AND NOT EXISTS (SELECT
                                            FROM dispatcher_worker AS worker
                                           WHERE wanted.queue = ANY (worker.queues) AND worker.serves_until > clock.now)
   AND NOT EXISTS (SELECT FROM dispatcher_queue AS other WHERE other.name = wanted.queue AND other.delivery = 'http')
 ORDER BY wanted.queue
 LIMIT %(most)s::int
