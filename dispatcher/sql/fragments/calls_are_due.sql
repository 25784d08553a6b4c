-- calls_are_due(queue): whether calls of a queue are scheduled or retryable, and their time has come. Relies on the
-- index call_due_queue.
EXISTS (SELECT
          FROM unnest(ARRAY['scheduled', 'retryable']) AS due (state)
         WHERE (SELECT call.id
                  FROM dispatcher_callqueue AS call
                 WHERE call.state = due.state AND call.state IN ('scheduled', 'retryable')
                   AND call.queue = {{queue}} AND call.scheduled_at <= (SELECT clock_timestamp())
                 ORDER BY call.scheduled_at
                 LIMIT 1) IS NOT NULL)
