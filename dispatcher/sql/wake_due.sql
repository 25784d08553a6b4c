-- wake_due: let the calls whose time has come wait in their lanes. Relies on the index call_due.
WITH due AS MATERIALIZED (
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.state IN ('scheduled', 'retryable')
       -- A subquery is asked once, so the index can be used: the clock by itself would be asked for every row.
       AND call.scheduled_at <= (SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()))
     ORDER BY call.scheduled_at, call.id
     LIMIT %(most)s::int
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dispatcher_callqueue AS call
   SET state = 'available'
 -- An array: joined, the planner may read the whole table to find these.
 WHERE call.id = ANY (ARRAY(SELECT due.id FROM due)) AND call.state IN ('scheduled', 'retryable')
RETURNING call.lane_id
