-- renew_fetch_leases: a worker reports that it still runs these calls; their leases start again, but no attempt gets
-- more time than it has. Only what the worker holds itself, or somebody without a name; a slot that is locked is about
-- to be freed.
-- A lease that is over is renewed as long as no recovery has ended it: the heartbeat may have waited for the database.
WITH {{clock}}, mine AS MATERIALIZED (
    SELECT slot.id, slot.call_id,
           LEAST(clock.now + COALESCE(%(lease)s::interval, job.visibility, %(usual)s::interval),
                 call.started_at + job.timeout) AS ends_at
      FROM clock
     CROSS JOIN dispatcher_callqueue AS call
      JOIN dispatcher_slot AS slot ON slot.call_id = call.id
      LEFT JOIN dispatcher_ojs_job AS job ON job.call_id = call.id
     WHERE call.id = ANY (%(calls)s::uuid[]) AND call.state = 'active' AND slot.pulled_until IS NOT NULL
       AND (job.timeout IS NULL OR call.started_at + job.timeout > clock.now)
       AND (slot.worker_id IS NULL OR slot.worker_id = %(worker)s::uuid)
       FOR NO KEY UPDATE OF slot SKIP LOCKED
), renewed AS (
    UPDATE dispatcher_slot AS slot
       SET lease_until = mine.ends_at, pulled_until = mine.ends_at, worker_id = %(worker)s::uuid,
           is_confirmed = true
      FROM mine
     WHERE slot.id = mine.id
    RETURNING slot.call_id
)
SELECT DISTINCT call_id
  FROM renewed
 ORDER BY call_id
