-- queue_bounds: how many calls may wait in these queues, for those that are bounded. With `is_lock`, who sends to one
-- goes one after the other, for as long as the transaction.
-- `most_waiting`: no more calls can wait, or be scheduled, in all queues together: an entry of an index takes 20 bytes
-- at the least.
WITH locked AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(number)::text AS lock
      FROM (SELECT hashtextextended('bound:' || queue.name, 20251) AS number
              FROM dispatcher_queue AS queue
             WHERE %(is_lock)s::bool AND queue.name = ANY (%(names)s::text[]) AND queue.max_depth IS NOT NULL
             ORDER BY number) AS bounded
)
SELECT queue.name, queue.max_depth, queue.on_full, queue.warn_at,
       (pg_relation_size('call_of_queue') + pg_relation_size('call_due_queue')) / 20 AS most_waiting
  FROM (SELECT count(*) FROM locked) AS held
 CROSS JOIN dispatcher_queue AS queue
 WHERE queue.name = ANY (%(names)s::text[]) AND queue.max_depth IS NOT NULL
 ORDER BY queue.name
