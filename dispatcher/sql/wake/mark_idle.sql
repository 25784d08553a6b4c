-- mark_idle: this worker has free processes and waits for calls of these queues, so that it may be woken (see wake).
-- It looks once more after the commit (has_work): what was sent meanwhile is seen by one of the two. The commit is not
-- waited for: a crash of the server ends the worker's connection, and then it writes the mark again.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', true) AS durability
)
INSERT INTO dispatcher_feed AS feed (worker_id, queues, idle_at, key_ids)
SELECT %(worker)s::uuid, %(queues)s::text[], clock.now, '{}'
  FROM clock
    ON CONFLICT (worker_id) DO UPDATE
   SET queues = excluded.queues, idle_at = excluded.idle_at
