-- mark_process: this process serves these queues: a lane of them whose turn it is may be its worker's. It is not idle.
-- The commit is not waited for: a crash of the server ends the process's connection, and then it writes the mark again.
-- A row that is there is left to the next trip: it may be locked, or be changed, which an INSERT would wait for.
WITH durability AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO dispatcher_process AS process (id, worker_id, queues)
SELECT %(process)s::uuid, %(worker)s::uuid, %(queues)s::text[] FROM durability
 WHERE NOT EXISTS (SELECT FROM dispatcher_process AS mine WHERE mine.id = %(process)s::uuid)
    ON CONFLICT (id) DO NOTHING
