-- set_fetch_leases: set the leases of calls that a worker has just fetched; they end at the attempt's timeout, if it
-- has one. `lease` is what the worker asked for, `usual` the setting; the job's own comes between them.
WITH until AS MATERIALIZED (
    SELECT call.id, LEAST(call.started_at + COALESCE(%(lease)s::interval, job.visibility, %(usual)s::interval),
                          call.started_at + job.timeout) AS ends_at
      FROM dispatcher_callqueue AS call
      LEFT JOIN dispatcher_ojs_job AS job ON job.call_id = call.id
     WHERE call.id = ANY (%(calls)s::uuid[]) AND call.ticket = ANY (%(tickets)s::uuid[]) AND call.state = 'active'
)
UPDATE dispatcher_slot AS slot
   SET lease_until = until.ends_at, pulled_until = until.ends_at
  FROM until
 WHERE slot.call_id = until.id
