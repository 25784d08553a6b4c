-- report_in_flight: the calls that hold slots of a key, in order of their ids. Relies on slot_key.
SELECT call.id, call.task, call.state, call.queue, call.priority, call.position, call.lane_id, call.attempt,
       slot.cost, call.created_at, COALESCE(slot.started_at, call.dispatched_at) AS since
  FROM dispatcher_ratelimitkey AS key
  JOIN dispatcher_slot AS slot ON slot.key_id = key.id
  JOIN dispatcher_callqueue AS call ON call.id = slot.call_id
 WHERE key.name = %(name)s::text
 ORDER BY slot.call_id
 LIMIT %(most)s::int
