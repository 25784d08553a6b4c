-- count_queue_usage: whether the queues of these lanes are served by whom the pass is for (see lock_lanes), and how many of their calls are on the way to a worker.
-- The caller holds the locks of the queues, so no other pass admits calls of them meanwhile. Relies on the index call_in_flight.
WITH clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
)
SELECT queue.name, going.unclaimed, COALESCE(stored.delivery, 'broker') AS delivery,
       (COALESCE(stored.delivery, 'broker') = %(delivery)s::text OR (%(is_eager)s::bool AND stored.delivery = 'direct'))
       AND (%(delivery)s::text <> 'broker' OR NOT %(is_gated)s::bool
            OR EXISTS (SELECT
                         FROM dispatcher_worker AS worker
                        WHERE queue.name = ANY (worker.queues) AND worker.serves_until > clock.now)) AS is_served
  FROM clock
 CROSS JOIN (SELECT DISTINCT lane.queue FROM dispatcher_lane AS lane WHERE lane.id = ANY (%(lanes)s::bigint[])) AS queue (name)
  LEFT JOIN dispatcher_queue AS stored ON stored.name = queue.name
 CROSS JOIN LATERAL (
       SELECT count(*) AS unclaimed
         FROM (SELECT
                 FROM dispatcher_callqueue AS call
                WHERE call.queue = queue.name AND call.state IN ('dispatched', 'active') AND call.state >= 'dispatched'
                LIMIT %(ahead)s::int) AS call) AS going
