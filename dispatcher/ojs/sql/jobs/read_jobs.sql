-- read_jobs: what is stored beside these calls: no row for a call that has nothing.
SELECT job.call_id, job.timeout, job.visibility, job.unique_key, job.envelope, job.progress, job.created_at,
       job.outcome, job.ended_at
  FROM dispatcher_ojs_job AS job
 WHERE job.call_id = ANY (%(calls)s::uuid[])
