-- count_waiting: the number of calls that wait in a queue, or are scheduled, up to a bound of each.
-- Relies on the indexes call_of_queue and call_due_queue.
SELECT available.calls + scheduled.calls + retryable.calls AS calls
  FROM (SELECT %(queue)s::text AS name) AS wanted
 CROSS JOIN LATERAL {{calls_counted(state = 'available', position)}} AS available
 CROSS JOIN LATERAL {{calls_counted(state = 'scheduled', scheduled_at)}} AS scheduled
 CROSS JOIN LATERAL {{calls_counted(state = 'retryable', scheduled_at)}} AS retryable
