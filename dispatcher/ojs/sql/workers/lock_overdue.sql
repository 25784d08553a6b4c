-- lock_overdue: calls that were fetched over HTTP and whose lease ran out, locked with their slots: call first, then
-- slots, as every step does. The lease is judged again under the lock, so a heartbeat that came in between saves the
-- call. A call with a slot that another transaction has locked is left to the next look.
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
), locked AS MATERIALIZED (
    SELECT slot.id, slot.call_id, slot.is_confirmed, slot.pulled_until <= clock.now AS is_over
      FROM held
     CROSS JOIN clock
      JOIN dispatcher_slot AS slot ON slot.call_id = held.id
     ORDER BY slot.call_id, slot.id
       FOR NO KEY UPDATE OF slot SKIP LOCKED
)
SELECT held.id AS call_id, held.ticket, COALESCE(held.is_timeout, false) AS is_timeout, locked.is_confirmed,
       held.attempt, held.retry, held.crashes
  FROM held
  JOIN locked ON locked.call_id = held.id AND locked.is_over
 WHERE (SELECT count(*) FROM locked WHERE locked.call_id = held.id)
       = (SELECT count(*) FROM dispatcher_slot AS slot WHERE slot.call_id = held.id)
 ORDER BY held.id
