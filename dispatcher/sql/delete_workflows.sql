-- delete_workflows: delete workflows that ended long enough ago, with what is in them; a part goes with the whole.
WITH RECURSIVE gone AS (
    SELECT workflow.id
      FROM dispatcher_workflow AS workflow
     WHERE workflow.parent_id IS NULL
       AND workflow.ended_at < COALESCE(%(now)s::timestamptz, clock_timestamp()) - %(retention)s::interval
     UNION ALL
    SELECT child.id
      FROM gone
      JOIN dispatcher_workflow AS child ON child.parent_id = gone.id
), parts AS (
    DELETE FROM dispatcher_part AS part
     WHERE part.workflow_id IN (SELECT gone.id FROM gone)
)
DELETE FROM dispatcher_workflow AS workflow
 WHERE workflow.id IN (SELECT gone.id FROM gone)
