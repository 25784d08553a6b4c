-- queue_has_idle(queue, moment): whether a process of a live worker is idle that serves a queue, as the function wake
-- sees it: it holds the lock of its session.
EXISTS (SELECT
          FROM dispatcher_process AS process
          JOIN dispatcher_worker AS worker ON worker.id = process.worker_id
         WHERE process.idle_at IS NOT NULL AND {{queue}} = ANY (process.queues)
           AND worker.serves_until > {{moment}} AND worker.stopped_at IS NULL AND worker.lost_at IS NULL
           AND NOT pg_try_advisory_xact_lock_shared(hashtextextended(process.id::text, 0)))
