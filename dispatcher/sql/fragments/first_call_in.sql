-- first_call_in(lane): the first call that waits in a lane, with the version of its row. Relies on call_waiting.
(SELECT call.id, call.position, call.costs, call.created_at, call.expires_at, call.xmin::text AS version
   FROM dispatcher_callqueue AS call
  WHERE {{waits_in(call, {{lane}})}}
  ORDER BY call.position
  LIMIT 1)
