-- audit_notes: what violates nothing, and people should know, each finding with the name of its note:
-- queue_unserved: a queue has lanes that are ready, or calls on the way, and no live worker;
-- unstarted: a call was dispatched again and again and never started, or no live worker of its queue knows its task;
-- poison: a call of the last day was discarded because it kills its workers;
-- periodic_overdue: a periodic task of the dispenser has not run for long.
-- Hops from queue to queue on the indexes lanesite_place and call_in_flight. Relies on call_returned and call_reason.
WITH RECURSIVE {{clock}}, {{hops(ready, dispatcher_lanesite, queue, place = 0, '', true)}},
{{hops(flown, dispatcher_callqueue, queue, (state = 'dispatched' OR state = 'active'), '', true)}},
returned AS MATERIALIZED (
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
), found AS (
    SELECT 'queue_unserved' AS name, 'queue ' || wanted.queue AS what, wanted.queue AS target, '' AS version,
           json_build_object('served_until', (SELECT max(worker.serves_until)
                                                FROM dispatcher_worker AS worker
                                               WHERE wanted.queue = ANY (worker.queues))) AS facts, 0 AS place
      FROM clock
     CROSS JOIN (SELECT ready.value FROM ready UNION SELECT flown.value FROM flown) AS wanted (queue)
     WHERE %(needs_worker)s::bool AND NOT {{queue_has_worker(wanted.queue, clock.now)}}
       AND {{queue_delivery(wanted.queue)}} <> 'http'
     UNION ALL
    SELECT 'unstarted', 'call ' || judged.id, judged.id::text, '',
           json_build_object('task', judged.task, 'queue', judged.queue, 'state', judged.state,
                             'returns', judged.returns, 'is_known', judged.is_known,
                             'scheduled_at', judged.scheduled_at), -judged.returns
      FROM judged
     WHERE judged.returns >= 3 OR NOT judged.is_known
     UNION ALL
    SELECT 'poison', 'call ' || call.id, call.id::text, '',
           json_build_object('task', call.task, 'queue', call.queue, 'attempt', call.attempt,
                             'finished_at', call.finished_at), -EXTRACT(EPOCH FROM call.finished_at)
      FROM dispatcher_callqueue AS call
     WHERE call.reason = 'poison'
       AND call.finished_at > (SELECT {{now}} - interval '1 day')
     UNION ALL
    SELECT 'periodic_overdue', task.name, task.name, run.ran_at::text, json_build_object('last_run_at', run.ran_at), 0
      FROM clock
     CROSS JOIN unnest(%(periodic)s::text[], %(periodic_late)s::interval[]) AS task (name, late)
      JOIN dispatcher_periodicrun AS run ON run.name = task.name
     WHERE run.ran_at + task.late < clock.now
), numbered AS (
    SELECT name, what, target, version, facts, count(*) OVER (PARTITION BY name) AS total,
           row_number() OVER (PARTITION BY name ORDER BY place, target) AS number
      FROM found
)
SELECT name, what, target, version, facts, total
  FROM numbered
 WHERE number <= %(most)s::int
 ORDER BY name, number
