-- workflows_with_news: the workflows in which a part has ended, or whose `look_at` has come; oldest news first.
-- A workflow with a later `look_at` is left out until then, here and not afterwards: many such could use up the limit.
-- Relies on part_news and workflow_look.
WITH ended AS MATERIALIZED (
    SELECT part.workflow_id AS id, part.ended_at AS at
      FROM dispatcher_ojs_part AS part
     CROSS JOIN LATERAL (
           SELECT workflow.id
             FROM dispatcher_ojs_workflow AS workflow
            WHERE workflow.id = part.workflow_id AND (workflow.look_at IS NULL OR workflow.look_at <= {{now}})
            LIMIT 1) AS ready
     WHERE part.outcome = 'open' AND part.ended_at IS NOT NULL
     ORDER BY part.ended_at
     LIMIT %(most)s::int
), due AS MATERIALIZED (
    SELECT workflow.id, workflow.look_at AS at
      FROM dispatcher_ojs_workflow AS workflow
     WHERE workflow.look_at <= (SELECT {{now}})
     ORDER BY workflow.look_at
     LIMIT %(most)s::int
)
SELECT news.id
  FROM (SELECT ended.id, ended.at FROM ended UNION ALL SELECT due.id, due.at FROM due) AS news
 GROUP BY news.id
 ORDER BY min(news.at), news.id
 LIMIT %(most)s::int
