-- discard_expired: end the calls that did not start in time. Each lane gets a note, since its first call may have
-- changed: what that one kept waiting is looked at. Relies on the index call_expires.
-- Ordered by time alone, as the index is: with the id as well, a batch would sort all that are due at the same instant.
-- Its states come as an array for the change: written out, they would offer the planner the indexes of all such calls.
WITH late AS MATERIALIZED (
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.state IN ('scheduled', 'pending', 'available', 'retryable')
       -- A subquery is asked once, so the index can be used: the clock by itself would be asked for every row.
       AND call.expires_at <= (SELECT {{now}})
     ORDER BY call.expires_at
     LIMIT %(most)s::int
       FOR NO KEY UPDATE SKIP LOCKED
), ended AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'discarded', reason = 'expired', oversized_key_id = NULL, oversized_cost = NULL,
           finished_at = {{now}},
           error = jsonb_build_object('type', 'Expired', 'message', 'not started by ' || call.expires_at,
                                      'attempt', call.attempt, 'occurred_at', {{now}})
     -- An array: joined, the planner may read the whole table to find these.
     WHERE call.id = ANY (ARRAY(SELECT late.id FROM late)) AND call.state = ANY (%(states)s::text[])
    RETURNING call.lane_id, call.position
), {{lanes_noted(ended, true)}}
SELECT count(*) AS calls FROM ended
