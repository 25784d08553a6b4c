-- audit_periodic_overdue: periodic tasks of the dispenser that have not run for long.
-- Relies on the primary key of dispatcher_periodicrun.
SELECT task.name AS what, task.name AS target, run.ran_at::text AS version,
       jsonb_build_object('last_run_at', run.ran_at) AS facts, count(*) OVER () AS total
  FROM (SELECT {{now}} AS now) AS clock
 CROSS JOIN unnest(%(periodic)s::text[], %(periodic_late)s::interval[]) AS task (name, late)
  JOIN dispatcher_periodicrun AS run ON run.name = task.name
 WHERE run.ran_at + task.late < clock.now
 ORDER BY task.name
 LIMIT %(most)s::int
