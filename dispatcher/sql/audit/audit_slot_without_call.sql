-- audit_slot_without_call: slots whose call is not in flight, or is gone: room that is never freed.
-- Slots are few, live only while their call is in flight, and are read whole, as are the calls in flight: one look for
-- each slot would cost ten times as much. An EXCEPT is hashed or sorted, whatever the statistics say.
-- Relies on the indexes call_in_flight and slot_call.
WITH astray AS MATERIALIZED (
    SELECT slot.call_id FROM dispatcher_slot AS slot
    EXCEPT
    SELECT call.id FROM dispatcher_callqueue AS call WHERE call.state IN ('dispatched', 'active')
)
SELECT 'slot of call ' || slot.call_id AS what, slot.id::text AS target, '' AS version,
       json_build_object('key', key.name, 'cost', slot.cost, 'state', COALESCE(call.state, 'gone')) AS facts,
       count(*) OVER () AS total
  FROM dispatcher_slot AS slot
  LEFT JOIN dispatcher_callqueue AS call ON call.id = slot.call_id
  LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
 WHERE slot.call_id = ANY (ARRAY(SELECT astray.call_id FROM astray))
 ORDER BY slot.id
 LIMIT %(most)s::int
