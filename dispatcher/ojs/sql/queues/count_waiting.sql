-- count_waiting: the number of calls that wait in a queue, or are scheduled, up to a bound.
-- Each state in the order of an index, so that no statistics make it cheap to read the table. Relies on the index
-- call_of_queue.
SELECT count(*) AS calls
  FROM ((SELECT
           FROM dispatcher_callqueue AS call
          WHERE call.queue = %(queue)s::text AND call.state = 'available'
          ORDER BY call.position
          LIMIT %(most)s::int)
        UNION ALL
        (SELECT
           FROM dispatcher_callqueue AS call
          WHERE call.queue = %(queue)s::text AND call.state = 'scheduled'
          ORDER BY call.scheduled_at, call.id
          LIMIT %(most)s::int)
        UNION ALL
        (SELECT
           FROM dispatcher_callqueue AS call
          WHERE call.queue = %(queue)s::text AND call.state = 'retryable'
          ORDER BY call.scheduled_at, call.id
          LIMIT %(most)s::int)) AS waiting
