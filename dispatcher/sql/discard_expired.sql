-- discard_expired: end the calls that did not start in time. Relies on the index call_expires.
WITH late AS MATERIALIZED (
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.state IN ('scheduled', 'pending', 'available', 'retryable')
       -- A subquery is asked once, so the index can be used: the clock by itself would be asked for every row.
       AND call.expires_at <= (SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()))
     ORDER BY call.expires_at, call.id
     LIMIT %(most)s::int
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dispatcher_callqueue AS call
   SET state = 'discarded', reason = 'expired', finished_at = COALESCE(%(now)s::timestamptz, clock_timestamp()),
       error = jsonb_build_object('type', 'Expired', 'message', 'not started by ' || call.expires_at, 'attempt', call.attempt,
                                  'occurred_at', COALESCE(%(now)s::timestamptz, clock_timestamp()))
 -- An array: joined, the planner may read the whole table to find these.
 WHERE call.id = ANY (ARRAY(SELECT late.id FROM late)) AND call.state IN ('scheduled', 'pending', 'available', 'retryable')
