-- mark_feed: this worker serves these queues: a lane of them whose turn it is may be its. With `is_idle` it has free
-- processes and waits: a trip that finds calls for it wakes it, and removes that (see the function wake).
-- Where it becomes idle the worker looks once more after the commit, so that a call that was sent meanwhile is seen by
-- one of the two. The commit is not waited for: a crash of the server ends the worker's
-- connection, and then it writes the mark again.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', true) AS durability
)
INSERT INTO dispatcher_feed AS feed (worker_id, queues, idle_at)
SELECT %(worker)s::uuid, %(queues)s::text[], CASE WHEN %(is_idle)s::bool THEN clock.now END
  FROM clock
    ON CONFLICT (worker_id) DO UPDATE
   SET queues = excluded.queues, idle_at = excluded.idle_at
