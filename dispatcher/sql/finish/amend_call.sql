-- amend_call: change what a call is tried again with: its arguments, queue, priority and expiry; what is not given
-- stays.
-- With another task it is that task's call, to which no attempt has been made.
-- One that goes to another lane has none for now, but the placement that makes it (see place_calls).
-- The caller has ended its attempt in the same transaction, and so holds its row.
-- One that waits for no time goes on at once: it is available now that it has changed, and not before (see Ending).
-- No row back means the call has ended.
WITH change AS MATERIALIZED (
    SELECT %(task)s::text IS NOT NULL AS is_other
), amended AS (
    UPDATE dispatcher_callqueue AS call
       SET state = CASE WHEN call.scheduled_at <= {{now}} THEN 'available' ELSE call.state END,
           task = COALESCE(%(task)s::text, call.task),
           args = COALESCE(%(args)s::jsonb, call.args), kwargs = COALESCE(%(kwargs)s::jsonb, call.kwargs),
           call_data = CASE WHEN NOT change.is_other THEN call.call_data END,
           headers = CASE WHEN change.is_other THEN %(headers)s::jsonb ELSE call.headers END,
           options = CASE WHEN change.is_other THEN %(options)s::jsonb ELSE call.options END,
           costs = CASE WHEN change.is_other THEN %(costs)s::jsonb ELSE call.costs END,
           retry = CASE WHEN change.is_other THEN %(retry)s::jsonb ELSE call.retry END,
           attempt = CASE WHEN change.is_other THEN 0 ELSE call.attempt END,
           queue = COALESCE(%(queue)s::text, call.queue), priority = COALESCE(%(priority)s::smallint, call.priority),
           lane_id = CASE WHEN %(placement)s::jsonb IS NULL THEN call.lane_id END, placement = %(placement)s::jsonb,
           expires_at = COALESCE(%(expires_at)s::timestamptz, {{now}} + %(expires_in)s::interval,
                                 CASE WHEN NOT change.is_other THEN call.expires_at END)
      FROM change
     WHERE call.id = %(call)s::uuid AND call.state IN ('retryable', 'available', 'scheduled')
    RETURNING call.state, call.lane_id, call.position
), woken AS (
    SELECT amended.lane_id, amended.position FROM amended WHERE amended.state = 'available'
), {{lanes_noted(woken, true)}}
SELECT amended.lane_id IS NULL FROM amended
