-- calls_in_lane(lane): up to `most` calls that wait in a lane, and as many of it that wait alone, the first ones first.
-- Relies on call_waiting and call_aside.
((SELECT call.id
    FROM dispatcher_callqueue AS call
   WHERE {{waits_in(call, {{lane}})}}
   ORDER BY call.position
   LIMIT %(most)s::int)
  UNION ALL
 (SELECT call.id
    FROM dispatcher_callqueue AS call
   WHERE {{waits_alone_in(call, {{lane}})}}
   ORDER BY call.position
   LIMIT %(most)s::int))
