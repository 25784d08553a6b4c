-- find_cancellable: up to `most` calls of a queue that are in these states and have not started.
-- Lanes are taken in the order of their index, or the planner might read them all.
-- Relies on the unique index of lane kinds, on call_waiting, call_aside, call_unplaced, call_due_queue, call_pending
-- and call_in_flight.
SELECT found.id
  FROM ((SELECT call.id
           FROM dispatcher_lane AS lane
          CROSS JOIN LATERAL {{calls_in_lane(lane.id)}} AS call
          WHERE lane.queue = %(queue)s::text AND 'available' = ANY (%(states)s::text[])
          ORDER BY lane.queue, lane.priority, lane.on_limit, lane.key_ids
          LIMIT %(most)s::int)
        UNION ALL
        (SELECT call.id
           FROM dispatcher_callqueue AS call
          WHERE {{is_unplaced(call)}} AND call.queue = %(queue)s::text
            AND call.state = 'available' AND 'available' = ANY (%(states)s::text[])
          LIMIT %(most)s::int)
        UNION ALL
        (SELECT due.id
           FROM (VALUES ('scheduled'), ('retryable')) AS of_state (state)
          CROSS JOIN LATERAL (
                SELECT call.id
                  FROM dispatcher_callqueue AS call
                 WHERE call.state = of_state.state AND call.state IN ('scheduled', 'retryable')
                   AND call.queue = %(queue)s::text
                 ORDER BY call.scheduled_at, call.id
                 LIMIT %(most)s::int) AS due
          WHERE of_state.state = ANY (%(states)s::text[])
          LIMIT %(most)s::int)
        UNION ALL
        (SELECT call.id
           FROM dispatcher_callqueue AS call
          WHERE call.queue = %(queue)s::text AND call.state = 'pending' AND 'pending' = ANY (%(states)s::text[])
          LIMIT %(most)s::int)
        UNION ALL
        (SELECT call.id
           FROM dispatcher_callqueue AS call
          WHERE call.queue = %(queue)s::text AND call.state IN ('dispatched', 'active') AND call.state = 'dispatched'
            AND 'dispatched' = ANY (%(states)s::text[])
          LIMIT %(most)s::int)) AS found
 LIMIT %(most)s::int
