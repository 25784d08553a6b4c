-- find_reserved_call: a call as a report needs it, and the workers that hold it: NULL is a worker without a name.
SELECT call.id, call.queue, call.state, call.ticket, call.claim, call.attempt, call.retry,
       ARRAY(SELECT DISTINCT slot.worker_id
               FROM dispatcher_slot AS slot
              WHERE slot.call_id = call.id AND slot.pulled_until IS NOT NULL) AS holders
  FROM dispatcher_callqueue AS call
 WHERE call.id = %(call)s::uuid
