-- held_calls: what this worker holds, by its heartbeats and claims.
SELECT DISTINCT call.id AS call_id, call.ticket
  FROM dispatcher_slot AS slot
  JOIN dispatcher_callqueue AS call ON call.id = slot.call_id AND call.ticket IS NOT NULL
 WHERE slot.worker_id = %(worker)s::uuid
 ORDER BY call_id
