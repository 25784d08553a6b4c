-- mark_idle: this worker has free processes and waits for calls of these queues: a sender may wake it, but not for
-- calls that spend a key of `reached`, of which it holds as much as one worker may.
-- The worker looks once more after the commit (has_lanes), so that a call that was sent meanwhile is seen by one of the
-- two. The commit is not waited for: a crash of the server ends the worker's connection, and then it writes the mark
-- again.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', true) AS durability
)
INSERT INTO dispatcher_feed AS feed (worker_id, queues, reached_key_ids, idle_at)
SELECT %(worker)s::uuid,
       ARRAY(SELECT mine.name
               FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS mine (name, turn)
              WHERE NOT ({{queue_spends(mine.name, %(reached)s::bigint[])}})
              ORDER BY mine.turn),
       %(reached)s::bigint[], clock.now
  FROM clock
    ON CONFLICT (worker_id) DO UPDATE
   SET queues = excluded.queues, reached_key_ids = excluded.reached_key_ids, idle_at = excluded.idle_at
