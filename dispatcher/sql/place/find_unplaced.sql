-- find_unplaced: of these calls those that have no lane yet, in order of sending, with what makes their lanes.
SELECT call.id, call.queue, call.priority, call.on_limit, call.placement
  FROM dispatcher_callqueue AS call
 WHERE call.id = ANY (%(calls)s::uuid[]) AND {{is_unplaced(call)}}
 ORDER BY call.position, call.id
