-- lock_expired: calls whose lease ran out, locked with their slots: call first, then slots, as
-- every step does.
-- A call that no worker has fetched may be in the broker's backlog. While workers hold calls of its queue, it
-- counts as lost only if one of those was published later, by `slack`: then its own message has had its turn.
-- Those that were fetched over HTTP have leases of their own (lock_overdue), while the app is there that judges them.
-- The lease is judged again under the lock, so a heartbeat that came in between saves the call. A call with a slot that
-- another transaction has locked is left to the next look.
-- Slots are few, live only while their call is in flight, and are read whole: an index on leases would cost every
-- heartbeat.
WITH {{clock}}, front AS MATERIALIZED (
    SELECT call.queue, max(call.published_at) AS published_at
      FROM clock
     CROSS JOIN dispatcher_slot AS slot
      JOIN dispatcher_callqueue AS call ON call.id = slot.call_id
     WHERE slot.worker_id IS NOT NULL AND slot.lease_until >= clock.now
     GROUP BY call.queue
), silent AS MATERIALIZED (
    SELECT slot.call_id, bool_or(slot.worker_id IS NOT NULL) AS is_fetched
      FROM clock
     CROSS JOIN dispatcher_slot AS slot
     WHERE (slot.pulled_until IS NULL OR NOT %(serves_http)s::bool)
       AND slot.lease_until < clock.now
     GROUP BY slot.call_id
), held AS MATERIALIZED (
    SELECT call.id, call.ticket
      FROM silent
      JOIN dispatcher_callqueue AS call ON call.id = silent.call_id
      LEFT JOIN front ON front.queue = call.queue
     WHERE call.state IN ('dispatched', 'active')
       AND (call.state = 'active' OR silent.is_fetched OR call.published_at IS NULL OR front.queue IS NULL
            OR call.published_at < front.published_at - %(slack)s::interval)
     ORDER BY call.id
     LIMIT %(most)s::int
       FOR NO KEY UPDATE OF call SKIP LOCKED
), locked AS MATERIALIZED (
    SELECT slot.id, slot.call_id, slot.lease_until < clock.now AS is_over
      FROM held
     CROSS JOIN clock
      JOIN dispatcher_slot AS slot ON slot.call_id = held.id
     ORDER BY slot.call_id, slot.id
       FOR NO KEY UPDATE OF slot SKIP LOCKED
)
SELECT held.id AS call_id, held.ticket
  FROM held
 WHERE EXISTS (SELECT FROM locked WHERE locked.call_id = held.id AND locked.is_over)
   AND (SELECT count(*) FROM locked WHERE locked.call_id = held.id)
       = (SELECT count(*) FROM dispatcher_slot AS slot WHERE slot.call_id = held.id)
 ORDER BY held.id
