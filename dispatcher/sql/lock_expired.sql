-- lock_expired: calls whose lease ran out, locked with their slots: call first, then slots, as every step does.
-- The lease is judged again under the lock, so a heartbeat that came in between saves the call.
-- Slots are few, live only while their call is in flight, and are read whole: an index on leases would cost every heartbeat.
WITH silent AS MATERIALIZED (
    SELECT DISTINCT slot.call_id
      FROM dispatcher_slot AS slot
     WHERE slot.lease_until < COALESCE(%(now)s::timestamptz, clock_timestamp())
), held AS MATERIALIZED (
    SELECT call.id, call.ticket, call.state, call.attempt, call.retry
      FROM dispatcher_callqueue AS call
     WHERE call.id IN (SELECT call_id FROM silent) AND call.state IN ('dispatched', 'active')
     ORDER BY call.id
     LIMIT %(most)s::int
       FOR NO KEY UPDATE SKIP LOCKED
)
SELECT held.id AS call_id, held.ticket, held.state, held.attempt, held.retry
  FROM held
  JOIN dispatcher_slot AS slot ON slot.call_id = held.id
 WHERE slot.lease_until < COALESCE(%(now)s::timestamptz, clock_timestamp())
 ORDER BY held.id
   FOR NO KEY UPDATE OF slot
