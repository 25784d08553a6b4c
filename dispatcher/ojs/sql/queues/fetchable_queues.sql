-- fetchable_queues: those of these queues that workers fetch from, in the order given. `has_due`: calls of the queue
-- are scheduled or retryable, and their time has come. Relies on the index call_due_queue.
SELECT queue.name,
       EXISTS (SELECT
                 FROM unnest(ARRAY['scheduled', 'retryable']) AS due (state)
                WHERE (SELECT call.id
                         FROM dispatcher_callqueue AS call
                        WHERE call.state = due.state AND call.state IN ('scheduled', 'retryable')
                          AND call.queue = queue.name AND call.scheduled_at <= (SELECT clock_timestamp())
                        ORDER BY call.scheduled_at
                        LIMIT 1) IS NOT NULL) AS has_due
  FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS mine (name, turn)
  JOIN dispatcher_queue AS queue ON queue.name = mine.name AND queue.delivery = 'http'
 ORDER BY mine.turn
