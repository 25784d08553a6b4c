-- find_calls_of_key: up to `most` calls that wait in lanes which spend a key, and as many that hold it.
-- All lanes are looked through, and no more calls than that. Relies on slot_key, call_waiting, call_aside and
-- call_unplaced.
(SELECT slot.call_id AS id
   FROM dispatcher_ratelimitkey AS key
   JOIN dispatcher_slot AS slot ON slot.key_id = key.id
  WHERE key.name = %(name)s::text
  LIMIT %(most)s::int)
UNION
(SELECT call.id
   FROM dispatcher_ratelimitkey AS key
   JOIN dispatcher_lane AS lane ON {{lane_spends(lane, key)}}
  CROSS JOIN LATERAL (
       (SELECT call.id
          FROM dispatcher_callqueue AS call
         WHERE {{waits_in(call, lane.id)}}
         ORDER BY call.position
         LIMIT %(most)s::int)
       UNION ALL
       (SELECT call.id
          FROM dispatcher_callqueue AS call
         WHERE {{waits_alone_in(call, lane.id)}}
         ORDER BY call.position
         LIMIT %(most)s::int)) AS call
  WHERE key.name = %(name)s::text
  LIMIT %(most)s::int)
UNION
(SELECT call.id
   FROM dispatcher_callqueue AS call
  WHERE {{is_unplaced(call)}} AND call.state = 'available'
    AND (call.placement -> 'names' ? %(name)s::text OR 'queue:' || call.queue = %(name)s::text)
  LIMIT %(most)s::int)
