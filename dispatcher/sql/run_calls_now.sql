-- run_calls_now: let calls wait at the very front of their lanes, whatever time they were sent for; limits still hold.
UPDATE dispatcher_callqueue AS call
   SET state = 'available',
       position = (SELECT LEAST(min(first.position), 0)
                     FROM dispatcher_callqueue AS first
                    WHERE first.lane_id = call.lane_id AND first.state = 'available') - 1
 WHERE call.id = ANY (%(calls)s::uuid[]) AND call.state IN ('scheduled', 'pending', 'available', 'retryable')
RETURNING call.id, call.lane_id
