-- queue_bounds: how many calls may wait in these queues, for those that are bounded; who sends to one goes one after
-- the other, for as long as the transaction. Without names, and without locks: in those whose latest event is that they
-- were nearly full. Relies on the index entry_pressure.
-- `most_waiting`: no more calls can wait, or be scheduled, in all queues together: an entry of an index takes 20 bytes
-- at the least.
WITH locked AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(number)::text AS lock
      FROM (SELECT hashtextextended('bound:' || queue.name, 20251) AS number
              FROM dispatcher_queue AS queue
             WHERE queue.name = ANY (%(names)s::text[]) AND queue.max_depth IS NOT NULL
             ORDER BY number) AS bounded
)
SELECT queue.name, queue.max_depth, queue.on_full, queue.warn_at,
       (pg_relation_size('call_of_queue') + pg_relation_size('call_due_queue')) / 20 AS most_waiting
  FROM (SELECT count(*) FROM locked) AS held
 CROSS JOIN dispatcher_queue AS queue
 WHERE queue.max_depth IS NOT NULL
   AND (queue.name = ANY (%(names)s::text[])
        OR (%(names)s::text[] IS NULL
            AND (SELECT entry.kind
                   FROM dispatcher_eventlogentry AS entry
                  WHERE entry.queue = queue.name AND entry.kind IN ('backpressure.warning', 'backpressure.cleared')
                  ORDER BY entry.at DESC
                  LIMIT 1) = 'backpressure.warning'))
 ORDER BY queue.name
