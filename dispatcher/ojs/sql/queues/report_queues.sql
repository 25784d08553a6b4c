-- report_queues: how many calls of these queues are in which state, up to `most` each; and how the last minute and hour
-- went.
-- The latter comes from the latest `recent` ends of a queue and state: above that, it is estimated from how long they
-- took.
-- Lanes are taken in the order of their index, or the planner might read them all for each queue. Relies on the unique
-- index of lane kinds, on call_waiting, call_aside, call_unplaced, call_in_flight, call_due_queue and call_ended_queue.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
SELECT wanted.name, waiting.calls + unplaced.calls AS available, flying.calls AS active, due.scheduled, due.retryable,
       ended.completed, ended.discarded, ended.cancelled,
       good.last_hour AS completed_last_hour, bad.last_hour AS failed_last_hour,
       good.last_minute AS completed_last_minute, bad.last_minute AS failed_last_minute, good.duration_ms, good.wait_ms
  FROM clock
 CROSS JOIN unnest(%(queues)s::text[]) WITH ORDINALITY AS wanted (name, place)
 CROSS JOIN LATERAL (
       SELECT count(*) AS calls
         FROM (SELECT
                 FROM dispatcher_lane AS lane
                CROSS JOIN LATERAL (
                      (SELECT
                         FROM dispatcher_callqueue AS call
                        WHERE {{waits_in(call, lane.id)}}
                        ORDER BY call.position
                        LIMIT %(most)s::int)
                      UNION ALL
                      (SELECT
                         FROM dispatcher_callqueue AS call
                        WHERE {{waits_alone_in(call, lane.id)}}
                        ORDER BY call.position
                        LIMIT %(most)s::int)) AS found
                WHERE lane.queue = wanted.name
                ORDER BY lane.queue, lane.priority, lane.on_limit, lane.key_ids
                LIMIT %(most)s::int) AS found) AS waiting
 CROSS JOIN LATERAL (
       SELECT count(*) AS calls
         FROM (SELECT
                 FROM dispatcher_callqueue AS call
                WHERE {{is_unplaced(call)}}
                  AND call.queue = wanted.name AND call.state = 'available'
                LIMIT %(most)s::int) AS found) AS unplaced
 CROSS JOIN LATERAL (
       SELECT count(*) AS calls
         FROM (SELECT
                 FROM dispatcher_callqueue AS call
                WHERE call.queue = wanted.name AND call.state IN ('dispatched', 'active')
                LIMIT %(most)s::int) AS found) AS flying
 CROSS JOIN LATERAL (
       SELECT max(counted.calls) FILTER (WHERE of_state.state = 'scheduled') AS scheduled,
              max(counted.calls) FILTER (WHERE of_state.state = 'retryable') AS retryable
         FROM (VALUES ('scheduled'), ('retryable')) AS of_state (state)
        CROSS JOIN LATERAL (
              SELECT count(*) AS calls
                FROM (SELECT
                        FROM dispatcher_callqueue AS call
                       WHERE call.state IN ('scheduled', 'retryable') AND call.state = of_state.state
                         AND call.queue = wanted.name
                       LIMIT %(most)s::int) AS found) AS counted) AS due
 CROSS JOIN LATERAL (
       SELECT max(counted.calls) FILTER (WHERE of_state.state = 'completed') AS completed,
              max(counted.calls) FILTER (WHERE of_state.state = 'discarded') AS discarded,
              max(counted.calls) FILTER (WHERE of_state.state = 'cancelled') AS cancelled
         FROM (VALUES ('completed'), ('discarded'), ('cancelled')) AS of_state (state)
        CROSS JOIN LATERAL (
              SELECT count(*) AS calls
                FROM (SELECT
                        FROM dispatcher_callqueue AS call
                       WHERE call.queue = wanted.name AND call.state = of_state.state AND call.finished_at IS NOT NULL
                       LIMIT %(most)s::int) AS found) AS counted) AS ended
 CROSS JOIN LATERAL ({{latest_ends(wanted.name, 'completed')}}) AS good
 CROSS JOIN LATERAL ({{latest_ends(wanted.name, 'discarded')}}) AS bad
 ORDER BY wanted.place
