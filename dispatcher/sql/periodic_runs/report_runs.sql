-- report_runs: when these periodic tasks last started, in the order asked for, and which worker ran them by itself.
-- Relies on the primary keys.
-- `is_late`: the last run is older than `lates` says. A tick that never ran is late; others may be yet to come.
SELECT task.name, run.ran_at, worker.name AS worker, clock.now AS at,
       COALESCE(run.ran_at + task.late < clock.now, task.name = 'dispatcher.tick') AS is_late
  FROM (SELECT {{now}} AS now) AS clock
 CROSS JOIN unnest(%(names)s::text[], %(lates)s::interval[]) WITH ORDINALITY AS task (name, late, place)
  LEFT JOIN dispatcher_periodicrun AS run ON run.name = task.name
  LEFT JOIN dispatcher_worker AS worker ON worker.id = run.ran_by
 ORDER BY task.place
