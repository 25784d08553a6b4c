-- retry_calls: let ended calls wait in their lanes again, with all their attempts and their error history kept.
UPDATE dispatcher_callqueue AS call
   SET state = 'available', attempt = 0, finished_at = NULL, started_at = NULL, dispatched_at = NULL,
       published_at = NULL, scheduled_at = NULL, expires_at = NULL, result = NULL
 WHERE call.id = ANY (%(calls)s::uuid[]) AND call.state IN ('completed', 'cancelled', 'discarded')
RETURNING call.id, call.lane_id
