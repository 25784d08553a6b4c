-- retry_calls: let ended calls wait in their lanes again, from attempt 0 and with their error history kept. Their lanes
-- get notes.
WITH moved AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'available', attempt = 0, finished_at = NULL, started_at = NULL, dispatched_at = NULL,
           published_at = NULL, scheduled_at = NULL, expires_at = NULL, result = NULL, reason = NULL, crashes = 0,
           returns = 0, is_revoked = false
      FROM (SELECT id
              FROM dispatcher_callqueue
             WHERE id = ANY (%(calls)s::uuid[])
             ORDER BY id
               FOR NO KEY UPDATE) AS locked
     WHERE call.id = locked.id AND call.state IN ('completed', 'cancelled', 'discarded')
    RETURNING call.id, call.lane_id, call.state, call.position
), {{lanes_noted(moved, true)}}
SELECT id, lane_id, state FROM moved ORDER BY position, id
