-- count_queue_usage: whether the queues of these lanes are served by whom the pass is for (see lock_lanes), and how
-- many of their calls are on the way to a worker.
-- The caller holds the locks of the queues, so no other pass admits calls of them meanwhile. Relies on the index
-- call_in_flight.
WITH {{clock}}
SELECT queue.name, going.unclaimed, {{queue_delivery(queue.name)}} AS delivery,
       {{queue_is_served(queue.name, clock.now)}} AS is_served
  FROM clock
 CROSS JOIN (SELECT DISTINCT lane.queue
               FROM dispatcher_lane AS lane
              WHERE lane.id = ANY (%(lanes)s::bigint[])) AS queue (name)
 CROSS JOIN LATERAL ({{queue_unclaimed(queue.name)}}) AS going
