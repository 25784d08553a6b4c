-- expire_call: end a call whose message arrived after it expired, and free its slots; nothing was started.
WITH ended AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'discarded', reason = 'expired', ticket = NULL, finished_at = {{now}},
           error = {{expired_error(call)}}
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.state = 'dispatched'
    RETURNING call.id, call.lane_id
), {{slots_freed(ended)}}
SELECT ended.lane_id, {{freed_keys}} AS keys
  FROM ended
