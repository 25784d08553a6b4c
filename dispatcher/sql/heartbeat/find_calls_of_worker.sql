-- find_calls_of_worker: what this worker holds, by its heartbeats and claims.
-- `claim`: the claim that started the call; NULL while it has not started.
SELECT DISTINCT call.id AS call_id, call.ticket, CASE WHEN call.state = 'active' THEN call.claim END AS claim
  FROM dispatcher_slot AS slot
  JOIN dispatcher_callqueue AS call ON call.id = slot.call_id AND call.ticket IS NOT NULL
 WHERE slot.worker_id = %(worker)s::uuid
 ORDER BY call_id
