-- delete_workflows: delete one batch of workflows that ended long enough ago, the oldest first, with what is in them; a
-- part goes with the whole. Relies on the index workflow_root_ended, and on those of parents and of parts.
WITH RECURSIVE root AS MATERIALIZED (
    SELECT workflow.id
      FROM dispatcher_ojs_workflow AS workflow
     WHERE workflow.parent_id IS NULL
       AND workflow.ended_at < (SELECT {{now}} - %(retention)s::interval)
     ORDER BY workflow.ended_at
     LIMIT %(most)s::int
       FOR UPDATE SKIP LOCKED
), gone AS (
    SELECT root.id FROM root
     UNION ALL
    SELECT child.id
      FROM gone
     CROSS JOIN LATERAL (
           -- One by one, or the planner may read all workflows to find these.
           SELECT child.id FROM dispatcher_ojs_workflow AS child WHERE child.parent_id = gone.id OFFSET 0) AS child
), parts AS (
    DELETE FROM dispatcher_ojs_part AS part
     WHERE part.workflow_id = ANY (ARRAY(SELECT gone.id FROM gone))
)
DELETE FROM dispatcher_ojs_workflow AS workflow
 WHERE workflow.id = ANY (ARRAY(SELECT gone.id FROM gone))
