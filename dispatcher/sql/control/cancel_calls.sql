-- cancel_calls: end calls that have not started, whatever they wait for, and free their slots; their keys and lanes get
-- notes. One that runs is left alone: its slots must stay until the third party has seen the end of it.
-- `only_revoked`: only those that were revoked while they ran, and that no person has retried since.
-- The caller has locked the calls, in an earlier statement: this one must see the slots that a trip gave them
-- meanwhile.
WITH ended AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'cancelled', ticket = NULL, oversized_key_id = NULL, oversized_cost = NULL, finished_at = {{now}}
     WHERE call.id = ANY (%(calls)s::uuid[])
       AND call.state IN ('scheduled', 'pending', 'available', 'dispatched', 'retryable')
       AND (call.is_revoked OR NOT %(only_revoked)s::bool)
    RETURNING call.id, call.lane_id, call.position
), {{slots_freed(ended)}}, {{lanes_noted(ended, true)}}
SELECT id FROM ended ORDER BY id
