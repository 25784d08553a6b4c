-- begin_runs: note that periodic tasks start now in this worker, and return them: those whose last run is older than
-- `every`, or than `after` where a message started that one. The row elects: of several workers one gets it, and who
-- waits for its lock finds it renewed, within `patience`.
-- A run of a worker that reaches no broker serves direct queues alone: it keeps no other worker from a run of its own.
-- Such a worker runs what no other has for two periods. Writes only where a run begins. Relies on the primary key.
WITH {{clock}}, patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', %(patience)s::text, true)
), task AS MATERIALIZED (
    SELECT task.name, task.every, task.after
      FROM unnest(%(names)s::text[], %(everys)s::interval[], %(afters)s::interval[]) AS task (name, every, after)
)
INSERT INTO dispatcher_periodicrun AS run (name, ran_at, ran_by, reaches_broker)
SELECT task.name, clock.now, %(worker)s::uuid, %(reaches)s::bool
  FROM clock
 CROSS JOIN patience
 CROSS JOIN task
  LEFT JOIN dispatcher_periodicrun AS run ON run.name = task.name
 WHERE run.name IS NULL OR {{is_run_over(run, task, clock.now)}}
 ORDER BY task.name
    ON CONFLICT (name) DO UPDATE
   SET ran_at = EXCLUDED.ran_at, ran_by = EXCLUDED.ran_by, reaches_broker = EXCLUDED.reaches_broker
 WHERE (SELECT {{is_run_over(run, task, EXCLUDED.ran_at)}} FROM task WHERE task.name = run.name)
RETURNING run.name
