-- audit_call_without_slot: calls in flight that hold no slot: no limit counts them, and no lease ends them.
-- Relies on the indexes call_in_flight and slot_call.
SELECT 'call ' || call.id AS what, call.id::text AS target, call.ticket::text AS version,
       json_build_object('task', call.task, 'queue', call.queue, 'state', call.state,
                         'dispatched_at', call.dispatched_at) AS facts,
       count(*) OVER () AS total
  FROM dispatcher_callqueue AS call
 WHERE call.state IN ('dispatched', 'active')
   AND NOT EXISTS (SELECT FROM dispatcher_slot AS slot WHERE slot.call_id = call.id)
 ORDER BY call.id
 LIMIT %(most)s::int
