-- record_parts: record how the open parts of these workflows ended, by their calls and by the workflows in them.
-- A part whose call is gone has failed, with the error `lost`. The caller has locked the workflows.
-- Each part looks its own call up: joined, the calls could be read whole. Relies on part_open.
WITH ended AS MATERIALIZED (
    SELECT part.id, part.child_id, found.outcome, found.result, found.error
      FROM dispatcher_ojs_part AS part
     CROSS JOIN LATERAL (
           SELECT child.state AS outcome,
                  CASE WHEN child.state = 'completed'
                       THEN (SELECT COALESCE(jsonb_object_agg(step.place, step.result), '{}')
                               FROM dispatcher_ojs_part AS step
                              WHERE step.workflow_id = child.id AND step.role = 'step') END AS result,
                  NULL::jsonb AS error
             FROM dispatcher_ojs_workflow AS child
            WHERE child.id = part.child_id AND child.state <> 'running'
            UNION ALL
           SELECT CASE call.state WHEN 'completed' THEN 'completed' WHEN 'cancelled' THEN 'cancelled' ELSE 'failed' END,
                  call.result, CASE WHEN call.id IS NULL THEN %(lost)s::jsonb END
             FROM (SELECT part.call AS id) AS own
             LEFT JOIN LATERAL (
                  SELECT same.id, same.state, same.result, same.finished_at
                    FROM dispatcher_callqueue AS same
                   WHERE same.id = own.id
                   LIMIT 1) AS call ON true
            WHERE part.child_id IS NULL AND (call.id IS NULL OR call.finished_at IS NOT NULL)) AS found
     WHERE part.workflow_id = ANY (%(workflows)s::uuid[]) AND part.outcome = 'open'
)
UPDATE dispatcher_ojs_part AS part
   SET outcome = ended.outcome, result = ended.result, error = ended.error
  FROM ended
 WHERE part.id = ended.id
