-- mark_idle: this worker has free processes and waits for calls of these queues: a sender may wake it.
-- The worker looks once more after the commit, so that a call that was sent meanwhile is seen by one of the two.
INSERT INTO dispatcher_feed AS feed (worker_id, queues, idle_at)
SELECT %(worker)s::uuid, %(queues)s::text[], clock_timestamp()
    ON CONFLICT (worker_id) DO UPDATE
   SET queues = excluded.queues, idle_at = excluded.idle_at
