-- lock_overdue: calls that were fetched over HTTP and whose lease ran out, locked with their slots: call first, then
-- slots, as every step does. The lease is judged again under the lock, so a heartbeat that came in between saves the
-- call.
-- `is_timeout`: its attempt has used up its time. `is_confirmed`: its worker has shown that it got the call.
-- Relies on the index slot_pulled.
WITH {{clock}}, overdue AS MATERIALIZED (
    SELECT slot.call_id
      FROM clock
     CROSS JOIN dispatcher_slot AS slot
     WHERE slot.pulled_until <= clock.now
     ORDER BY slot.pulled_until
     LIMIT %(most)s::int
), held AS MATERIALIZED (
    SELECT call.id, call.ticket, call.attempt, call.retry, call.crashes,
           call.started_at + job.timeout <= clock.now AS is_timeout
      FROM clock
     CROSS JOIN dispatcher_callqueue AS call
      LEFT JOIN dispatcher_ojs_job AS job ON job.call_id = call.id
     WHERE call.id IN (SELECT overdue.call_id FROM overdue) AND call.state = 'active'
     ORDER BY call.id
       FOR NO KEY UPDATE OF call SKIP LOCKED
)
SELECT held.id AS call_id, held.ticket, COALESCE(held.is_timeout, false) AS is_timeout, slot.is_confirmed, held.attempt,
       held.retry, held.crashes
  FROM held
 CROSS JOIN clock
  JOIN dispatcher_slot AS slot ON slot.call_id = held.id
 WHERE slot.pulled_until <= clock.now
 ORDER BY held.id
   FOR NO KEY UPDATE OF slot
