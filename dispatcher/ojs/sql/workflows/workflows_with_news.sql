-- workflows_with_news: the running workflows in which a call or a workflow has ended, or whose `look_at` has come.
-- Oldest news first. A workflow with a later `look_at` is left out until then.
-- Relies on job_awaited, part_call and workflow_look.
WITH ended AS MATERIALIZED (
    SELECT job.call_id AS id, job.ended_at
      FROM dispatcher_ojs_job AS job
     WHERE job.is_awaited AND job.ended_at IS NOT NULL
     ORDER BY job.ended_at
     LIMIT %(most)s::int
), due AS MATERIALIZED (
    SELECT CASE WHEN workflow.state = 'running' THEN workflow.id ELSE workflow.parent_id END AS id, workflow.look_at
      FROM dispatcher_ojs_workflow AS workflow
     WHERE workflow.look_at <= (SELECT {{now}})
     ORDER BY workflow.look_at
     LIMIT %(most)s::int
)
SELECT workflow.id
  FROM (SELECT part.workflow_id AS id, ended.ended_at AS at
          FROM ended
         CROSS JOIN LATERAL (
               SELECT part.workflow_id
                 FROM dispatcher_ojs_part AS part
                WHERE part.call = ended.id AND part.outcome = 'open'
                LIMIT 100) AS part
         UNION ALL
        SELECT due.id, due.look_at
          FROM due) AS news
  JOIN dispatcher_ojs_workflow AS workflow
    ON workflow.id = news.id AND workflow.state = 'running'
       AND (workflow.look_at IS NULL OR workflow.look_at <= {{now}})
 GROUP BY workflow.id
 ORDER BY min(news.at), workflow.id
 LIMIT %(most)s::int
