-- mark_awaited: a workflow waits for the ends of these calls, which it has sent; each has a job. A call that has ended
-- already is news at once: it is locked, so that its end is either seen here or marks the job (see the trigger).
WITH call AS MATERIALIZED (
    SELECT call.id, call.finished_at
      FROM dispatcher_callqueue AS call
     WHERE call.id = ANY (%(calls)s::uuid[])
     ORDER BY call.id
       FOR NO KEY UPDATE
)
UPDATE dispatcher_ojs_job AS job
   SET is_awaited = true, ended_at = call.finished_at
  FROM call
 WHERE job.call_id = ANY (ARRAY(SELECT call.id FROM call)) AND job.call_id = call.id
