-- amend_call: change what a call is tried again with: its arguments, queue, priority and expiry; what is not given
-- stays.
-- The caller has ended its attempt in the same transaction, and so holds its row. The lane is locked against its
-- removal.
-- No row back means the call is not `retryable`, or the lane for it is missing. Relies on the unique index of lane
-- kinds.
WITH target AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.priority
      FROM dispatcher_callqueue AS call
      JOIN dispatcher_lane AS mine ON mine.id = call.lane_id
      JOIN dispatcher_lane AS lane ON lane.on_limit = mine.on_limit AND lane.key_ids = mine.key_ids
     WHERE call.id = %(call)s::uuid
       AND lane.queue = COALESCE(%(queue)s::text, mine.queue)
       AND lane.priority = COALESCE(%(priority)s::smallint, mine.priority)
       FOR KEY SHARE OF lane
)
UPDATE dispatcher_callqueue AS call
   SET args = COALESCE(%(args)s::jsonb, call.args), kwargs = COALESCE(%(kwargs)s::jsonb, call.kwargs),
       lane_id = target.id, queue = target.queue, priority = target.priority,
       expires_at = COALESCE(%(expires_at)s::timestamptz,
                             {{now}} + %(expires_in)s::interval, call.expires_at)
  FROM target
 WHERE call.id = %(call)s::uuid AND call.state = 'retryable'
RETURNING call.id
