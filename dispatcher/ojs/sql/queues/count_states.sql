-- count_states: how many calls there are in each state, up to `most` each; and how many ended in the last minute: above
-- `most`, that is estimated from how long the latest took. Each count reads one index in its order.
-- Relies on call_waiting, call_aside, call_due_queue, call_pending, call_in_flight and call_ended.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
SELECT counted.state, counted.calls, COALESCE(minute.calls, 0) AS last_minute
  FROM (SELECT 'available' AS state, count(*) AS calls
          FROM (SELECT
                  FROM dispatcher_callqueue AS call
                 WHERE call.state = 'available' AND call.oversized_key_id IS NULL
                 ORDER BY call.lane_id, call.position
                 LIMIT %(most)s::int) AS found
         UNION ALL
        SELECT 'available', count(*)
          FROM (SELECT
                  FROM dispatcher_callqueue AS call
                 WHERE call.oversized_key_id IS NOT NULL
                 ORDER BY call.lane_id, call.position
                 LIMIT %(most)s::int) AS found
         UNION ALL
        SELECT 'pending', count(*)
          FROM (SELECT
                  FROM dispatcher_callqueue AS call
                 WHERE call.state = 'pending'
                 ORDER BY call.queue
                 LIMIT %(most)s::int) AS found
         UNION ALL
        SELECT of_state.state, counted.calls
          FROM (VALUES ('scheduled'), ('retryable')) AS of_state (state)
         CROSS JOIN LATERAL (
               SELECT count(*) AS calls
                 FROM (SELECT
                         FROM dispatcher_callqueue AS call
                        WHERE call.state IN ('scheduled', 'retryable') AND call.state = of_state.state
                        ORDER BY call.queue, call.scheduled_at, call.id
                        LIMIT %(most)s::int) AS found) AS counted
         UNION ALL
        SELECT 'active', count(*)
          FROM (SELECT
                  FROM dispatcher_callqueue AS call
                 WHERE call.state IN ('dispatched', 'active')
                 ORDER BY call.queue, call.state
                 LIMIT %(most)s::int) AS found
         UNION ALL
        SELECT of_state.state, counted.calls
          FROM (VALUES ('completed'), ('cancelled'), ('discarded')) AS of_state (state)
         CROSS JOIN LATERAL (
               SELECT count(*) AS calls
                 FROM (SELECT
                         FROM dispatcher_callqueue AS call
                        WHERE call.state = of_state.state AND call.finished_at IS NOT NULL
                        ORDER BY call.finished_at DESC
                        LIMIT %(most)s::int) AS found) AS counted) AS counted
  LEFT JOIN LATERAL (
       SELECT CASE WHEN count(*) < %(most)s::int THEN count(*)
                   ELSE {{estimated_count(60, max(clock.now) - min(latest.finished_at))}}
                   END AS calls
         FROM clock
        CROSS JOIN LATERAL (
              SELECT call.finished_at
                FROM dispatcher_callqueue AS call
               WHERE call.state = counted.state AND call.finished_at > clock.now - interval '1 minute'
               ORDER BY call.finished_at DESC
               LIMIT %(most)s::int) AS latest) AS minute ON counted.state IN ('completed', 'discarded')
