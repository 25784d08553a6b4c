-- wake_due: let the calls whose time has come wait in their lanes, those of all queues or of some. Each lane gets a
-- note: one of these calls may be its first now, so it is looked at even where it is parked. Relies on the index
-- call_due.
-- Ordered by time alone, as the index is: with the id as well, a batch would sort all that are due at the same instant.
-- Its states come as an array for the change: written out, they would offer the planner the indexes of all such calls.
WITH due AS MATERIALIZED (
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.state IN ('scheduled', 'retryable')
       -- A subquery is asked once, so the index can be used: the clock by itself would be asked for every row.
       AND call.scheduled_at <= (SELECT {{now}})
       AND (%(queues)s::text[] IS NULL OR call.queue = ANY (%(queues)s::text[]))
     ORDER BY call.scheduled_at
     LIMIT %(most)s::int
       FOR NO KEY UPDATE SKIP LOCKED
), woken AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'available'
     -- An array: joined, the planner may read the whole table to find these.
     WHERE call.id = ANY (ARRAY(SELECT due.id FROM due)) AND call.state = ANY (%(states)s::text[])
    RETURNING call.lane_id, call.position
), {{lanes_noted(woken, true)}}
SELECT count(*) AS calls FROM woken
