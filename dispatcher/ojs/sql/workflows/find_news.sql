-- find_news: up to %(most)s workflows in which a part has ended, or whose `look_at` has come; oldest news first.
-- One with a later `look_at` is left out until then, here and not afterwards: many such could use up the limit.
-- Relies on part_news and workflow_look.
SELECT news.id
  FROM ((SELECT part.workflow_id AS id, part.ended_at AS at
           FROM dispatcher_ojs_part AS part
           JOIN dispatcher_ojs_workflow AS workflow ON workflow.id = part.workflow_id
          WHERE part.outcome = 'open' AND part.ended_at IS NOT NULL
            AND (workflow.look_at IS NULL OR workflow.look_at <= {{now}})
          ORDER BY part.ended_at
          LIMIT %(most)s)
         UNION ALL
        (SELECT workflow.id, workflow.look_at
           FROM dispatcher_ojs_workflow AS workflow
          WHERE workflow.look_at <= {{now}}
          ORDER BY workflow.look_at
          LIMIT %(most)s)) AS news
 GROUP BY news.id
 ORDER BY min(news.at)
 LIMIT %(most)s
