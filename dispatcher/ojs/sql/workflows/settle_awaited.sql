-- settle_awaited: clear the mark of ended calls whose end is recorded: no running workflow has an open part with them.
-- A workflow with a `look_at` needs no mark. Locked rows are left to the next run.
-- Also clears `look_at` of ended workflows whose parent does not run any more.
-- Relies on job_awaited, part_call and workflow_look.
WITH ended AS MATERIALIZED (
    SELECT job.call_id AS id
      FROM dispatcher_ojs_job AS job
     WHERE job.is_awaited AND job.ended_at IS NOT NULL
     ORDER BY job.ended_at
     LIMIT %(most)s::int
       FOR NO KEY UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT workflow.id
      FROM dispatcher_ojs_workflow AS workflow
     WHERE workflow.look_at <= (SELECT {{now}}) AND workflow.state <> 'running'
     ORDER BY workflow.look_at
     LIMIT %(most)s::int
       FOR NO KEY UPDATE SKIP LOCKED
), settled AS (
    UPDATE dispatcher_ojs_job AS job
       SET is_awaited = false
     WHERE job.call_id = ANY (ARRAY(
           SELECT ended.id
             FROM ended
            WHERE (SELECT part.id
                     FROM dispatcher_ojs_part AS part
                     JOIN dispatcher_ojs_workflow AS workflow ON workflow.id = part.workflow_id
                    WHERE part.call = ended.id AND part.outcome = 'open' AND workflow.state = 'running'
                      AND workflow.look_at IS NULL
                    LIMIT 1) IS NULL))
)
UPDATE dispatcher_ojs_workflow AS workflow
   SET look_at = NULL
 WHERE workflow.id = ANY (ARRAY(
       SELECT due.id
         FROM due
        WHERE (SELECT part.id
                 FROM dispatcher_ojs_part AS part
                 JOIN dispatcher_ojs_workflow AS parent ON parent.id = part.workflow_id
                WHERE part.child_id = due.id AND part.outcome = 'open' AND parent.state = 'running'
                LIMIT 1) IS NULL))
