-- audit_slot_without_call: slots whose call is not in flight, or is gone: room that nobody will ever give back.
-- Slots are few, live only while their call is in flight, and are read whole.
SELECT 'slot of call ' || slot.call_id AS what, slot.id::text AS target, '' AS version,
       json_build_object('key', key.name, 'cost', slot.cost, 'state', COALESCE(call.state, 'gone')) AS facts,
       count(*) OVER () AS total
  FROM dispatcher_slot AS slot
  LEFT JOIN dispatcher_callqueue AS call ON call.id = slot.call_id
  LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
 WHERE call.id IS NULL OR call.state NOT IN ('dispatched', 'active')
 ORDER BY slot.id
 LIMIT %(most)s::int
