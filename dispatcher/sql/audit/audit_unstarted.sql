-- audit_unstarted: calls that were dispatched again and again and never started, or whose task no live worker of their
-- queue knows. Relies on the index call_returned.
WITH {{clock}}, returned AS MATERIALIZED (
    SELECT call.id, call.task, call.queue, call.state, call.returns, call.scheduled_at
      FROM dispatcher_callqueue AS call
     WHERE call.returns > 0 AND call.finished_at IS NULL
     ORDER BY call.queue, call.task, call.id
     LIMIT 1000
), judged AS MATERIALIZED (
    SELECT returned.id, returned.task, returned.queue, returned.state, returned.returns, returned.scheduled_at,
           {{task_has_worker(returned.queue, returned.task, clock.now)}} AS is_known
      FROM clock
     CROSS JOIN returned
)
SELECT 'call ' || judged.id AS what, judged.id::text AS target, '' AS version,
       json_build_object('task', judged.task, 'queue', judged.queue, 'state', judged.state, 'returns', judged.returns,
                         'is_known', judged.is_known, 'scheduled_at', judged.scheduled_at) AS facts,
       count(*) OVER () AS total
  FROM judged
 WHERE judged.returns >= 3 OR NOT judged.is_known
 ORDER BY judged.returns DESC, judged.id
 LIMIT %(most)s::int
