-- mark_feed: this worker serves these queues: a lane of them whose turn it is may be its. With `is_idle` it has free
-- processes and waits: a trip that finds calls for it wakes it, and removes that (see the function wake).
-- Where it becomes idle the worker looks once more after the commit, so that a call that was sent meanwhile is seen by
-- one of the two. The commit is not waited for: a crash of the server ends the worker's
-- connection, and then it writes the mark again.
-- A row that another transaction has locked stays as it is, and is written later: the worker would take no calls while
-- it waited for that one.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', true) AS durability
), mine AS MATERIALIZED (
    SELECT feed.worker_id
      FROM dispatcher_feed AS feed
     WHERE feed.worker_id = %(worker)s::uuid
       FOR NO KEY UPDATE SKIP LOCKED
)
INSERT INTO dispatcher_feed AS feed (worker_id, queues, idle_at)
SELECT %(worker)s::uuid, %(queues)s::text[], CASE WHEN %(is_idle)s::bool THEN clock.now END
  FROM clock
 WHERE EXISTS (SELECT FROM mine)
    OR NOT EXISTS (SELECT FROM dispatcher_feed AS feed WHERE feed.worker_id = %(worker)s::uuid)
    ON CONFLICT (worker_id) DO UPDATE
   SET queues = excluded.queues, idle_at = excluded.idle_at
