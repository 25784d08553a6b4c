-- take_over_runs: return the periodic tasks that this worker is to run by itself: those that it has taken over, and
-- those whose last run is older than `after`, which it takes over now. One that never ran, or whose worker has stopped,
-- is taken over when it is older than `idle`. Of several workers one gets a row; the others skip it.
-- A worker that does not take the dispenser's queue does so only where no live worker takes it, or where those that do
-- have not run the task for longer than a lease.
-- Writes where a task is taken over, and once for a task that is not known. Relies on the primary key.
WITH {{clock}}, task AS MATERIALIZED (
    SELECT name, after, idle
      FROM unnest(%(names)s::text[], %(afters)s::interval[], %(idles)s::interval[]) AS task (name, after, idle)
), known AS MATERIALIZED (
    SELECT run.name, run.ran_by, COALESCE(run.ran_at, run.created_at) AS at,
           CASE WHEN run.ran_at IS NULL
                     OR EXISTS (SELECT
                                  FROM dispatcher_worker AS worker
                                 WHERE worker.id = run.ran_by AND worker.stopped_at IS NOT NULL)
                THEN task.idle ELSE task.after END AS after
      FROM task
      JOIN dispatcher_periodicrun AS run ON run.name = task.name
), allowed AS MATERIALIZED (
    SELECT known.name, known.ran_by, known.after,
           -- A time in the future is of a clock that was set back.
           NOT known.at BETWEEN clock.now - known.after AND clock.now AS is_overdue
      FROM clock
     CROSS JOIN known
     WHERE %(is_dispenser)s::bool
        OR known.at + known.after + %(lease)s::interval < clock.now
        OR NOT EXISTS (SELECT
                         FROM dispatcher_worker AS worker
                        WHERE %(queue)s::text = ANY (worker.queues)
                          AND worker.stopped_at IS NULL AND worker.lost_at IS NULL
                          AND worker.seen_at > (SELECT clock.now - %(lease)s::interval FROM clock))
), locked AS MATERIALIZED (
    SELECT run.name
      FROM clock
     CROSS JOIN allowed
      JOIN dispatcher_periodicrun AS run ON run.name = allowed.name
     WHERE allowed.is_overdue
       -- Judged again under the lock: another worker may have been first.
       AND NOT COALESCE(run.ran_at, run.created_at) BETWEEN clock.now - allowed.after AND clock.now
     ORDER BY run.name
       FOR NO KEY UPDATE OF run SKIP LOCKED
), taken AS (
    UPDATE dispatcher_periodicrun AS run
       SET ran_at = clock.now, ran_by = %(worker)s::uuid
      FROM clock, locked
     WHERE run.name = locked.name
    RETURNING run.name
), made AS (
    INSERT INTO dispatcher_periodicrun (name, created_at, ran_at, ran_by)
    SELECT task.name, clock.now, CASE WHEN task.idle = '0' THEN clock.now END,
           CASE WHEN task.idle = '0' THEN %(worker)s::uuid END
      FROM clock
     CROSS JOIN task
     WHERE NOT EXISTS (SELECT FROM dispatcher_periodicrun AS run WHERE run.name = task.name)
        ON CONFLICT (name) DO NOTHING
    RETURNING name, ran_by
)
SELECT taken.name
  FROM taken
 UNION ALL
SELECT made.name
  FROM made
 WHERE made.ran_by IS NOT NULL
 UNION ALL
SELECT allowed.name
  FROM allowed
 WHERE allowed.ran_by = %(worker)s::uuid AND NOT allowed.is_overdue
 ORDER BY name
