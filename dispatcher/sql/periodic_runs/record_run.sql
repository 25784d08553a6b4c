-- record_run: note that a periodic task starts now. Writes only where the record is older than `keep`, or where it
-- names a worker that ran the task by itself and the task was asked for now: a task that runs every second writes every
-- few.
-- A row that another one is writing is left alone. Relies on the primary key.
WITH {{clock}}, old AS MATERIALIZED (
    SELECT run.name
      FROM clock
     CROSS JOIN dispatcher_periodicrun AS run
     WHERE run.name = %(name)s::text
       -- A time in the future is of a clock that was set back.
       AND (run.ran_at IS NULL OR run.ran_at NOT BETWEEN clock.now - %(keep)s::interval AND clock.now
            OR (run.ran_by IS NOT NULL AND %(worker)s::uuid IS NULL))
       FOR NO KEY UPDATE OF run SKIP LOCKED
), updated AS (
    UPDATE dispatcher_periodicrun AS run
       SET ran_at = clock.now, ran_by = %(worker)s::uuid
      FROM clock, old
     WHERE run.name = old.name
)
INSERT INTO dispatcher_periodicrun (name, created_at, ran_at, ran_by)
SELECT %(name)s::text, clock.now, clock.now, %(worker)s::uuid
  FROM clock
 WHERE NOT EXISTS (SELECT FROM dispatcher_periodicrun AS run WHERE run.name = %(name)s::text)
    ON CONFLICT (name) DO NOTHING
