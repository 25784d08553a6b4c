-- wake_workers: after the commit of calls that wait now, notify one idle worker of each of their queues, and of each of
-- `queues`; return the queues, so that those that the broker delivers can be dispensed, and where tasks are eager
-- direct ones, too. `calls`: the first of each lane.
-- A lane that is parked needs none: who opens its key finds the call. But where the call came before those that wait
-- there (it was sent earlier, and committed later), the lane is parked for another one: it is looked at again. So is a
-- lane whose note was old at the commit: trips read young notes alone.
-- A call that waits no more was found by a trip, which wakes others as far as it leaves something to do.
-- The commit is not waited for: the note of the send outlasts a crash. Relies on lanesite_lane and call_waiting.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', true) AS durability
), sent AS MATERIALIZED (
    -- Each by its id alone: a plan that was made while there were few calls would read them all.
    SELECT call.id, call.lane_id, call.position, call.state, call.created_at
      FROM unnest((SELECT %(calls)s::uuid[])) AS first (id)
     CROSS JOIN LATERAL (
           SELECT called.id, called.lane_id, called.position, called.state, called.created_at
             FROM dispatcher_callqueue AS called
            WHERE called.id = first.id
            LIMIT 1) AS call
), lane AS MATERIALIZED (
    SELECT site.lane_id, site.queue, site.place, call.position, call.created_at
      FROM sent AS call
      JOIN dispatcher_lanesite AS site ON site.lane_id = call.lane_id
     WHERE call.state = 'available'
       AND (COALESCE(site.place, 0) = 0
            OR (SELECT front.id
                  FROM dispatcher_callqueue AS front
                 WHERE {{waits_in(front, site.lane_id)}}
                 ORDER BY front.position
                 LIMIT 1) = call.id)
), moved AS (
    SELECT lane.lane_id, lane.position
      FROM clock
     CROSS JOIN lane
     WHERE lane.place <> 0
        OR (lane.place IS NULL AND lane.created_at < clock.now - interval '500 milliseconds')
), {{lanes_noted(moved, true)}}, queue AS MATERIALIZED (
    SELECT named.name,
           {{queue_delivery(named.name)}} = ANY (CASE WHEN (SELECT %(is_eager)s::bool) THEN ARRAY['broker', 'direct']
                                                      ELSE ARRAY['broker'] END) AS is_published
      FROM (SELECT lane.queue AS name FROM lane UNION SELECT unnest((SELECT %(queues)s::text[]))) AS named
), woken AS MATERIALIZED (
    SELECT queue.name, queue.is_published,
           CASE WHEN NOT queue.is_published
                THEN {{@wake}}(queue.name, NULL, NULL, %(silence)s::interval, clock.now) END AS worker_id
      FROM clock
     CROSS JOIN queue
)
SELECT woken.name AS queue, woken.is_published,
       CASE WHEN woken.worker_id IS NOT NULL THEN {{worker_notified(woken.worker_id)}} END AS sent
  FROM woken
 ORDER BY woken.name
