-- revoke_calls: lock these calls in order of id, and note on those that run that no other attempt of them may start.
-- The caller cancels the others in its next statement, which sees the slots that a trip gave them meanwhile.
-- Returns the calls that exist.
WITH locked AS MATERIALIZED (
    SELECT call.id, call.state
      FROM dispatcher_callqueue AS call
     WHERE call.id = ANY (%(calls)s::uuid[])
     ORDER BY call.id
       FOR NO KEY UPDATE
), noted AS (
    UPDATE dispatcher_callqueue AS call
       SET is_revoked = true
      FROM locked
     WHERE call.id = locked.id AND locked.state = 'active' AND call.state = 'active'
)
SELECT id
  FROM locked
 ORDER BY id
