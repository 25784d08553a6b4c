-- check_parts: one slice of the open parts, and the running workflows of those whose call or workflow was deleted or
-- has
-- ended. It finds ends that caused no news, such as a deleted call. `after` and `after_part` are those of the next
-- slice.
-- Each part looks up its own call: a join could read the whole table. Relies on part_open.
WITH slice AS MATERIALIZED (
    SELECT part.id, part.workflow_id, part.call, part.child_id
      FROM dispatcher_ojs_part AS part
     WHERE part.outcome = 'open' AND (part.workflow_id, part.id) > (%(after)s::uuid, %(after_part)s::bigint)
     ORDER BY part.workflow_id, part.id
     LIMIT %(most)s::int
), last AS (
    SELECT slice.workflow_id, slice.id
      FROM slice
     ORDER BY slice.workflow_id, slice.id
    OFFSET %(most)s::int - 1
)
SELECT ARRAY(SELECT DISTINCT slice.workflow_id
               FROM slice
               JOIN dispatcher_ojs_workflow AS workflow
                 ON workflow.id = slice.workflow_id AND workflow.state = 'running'
              WHERE COALESCE((SELECT call.id
                                FROM dispatcher_callqueue AS call
                               WHERE call.id = slice.call AND call.finished_at IS NULL
                               LIMIT 1),
                             (SELECT child.id
                                FROM dispatcher_ojs_workflow AS child
                               WHERE child.id = slice.child_id AND child.state = 'running'
                               LIMIT 1)) IS NULL) AS workflows,
       COALESCE((SELECT last.workflow_id FROM last), '00000000-0000-0000-0000-000000000000') AS after,
       COALESCE((SELECT last.id FROM last), 0) AS after_part
