-- wake: take the idle mark of one process that serves a queue, and return it, to be notified after the commit; of those
-- that are alive the one that has been idle for longest: a process of a worker holds the lock of its session. With
-- `p_key`: of a worker that may hold more of it. NULL: none is idle. A mark without a worker is that of a fetch that
-- waits over HTTP, which writes it again and again.
CREATE FUNCTION @wake(p_queue text, p_key bigint, p_not uuid, p_silence interval, p_now timestamptz) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
  v_process uuid;
BEGIN
  IF NOT EXISTS (SELECT FROM dispatcher_process AS idle
                  WHERE idle.idle_at IS NOT NULL AND p_queue = ANY (idle.queues)) THEN
    RETURN NULL;
  END IF;
  UPDATE dispatcher_process AS process
     SET idle_at = NULL
   WHERE process.id = (
           SELECT idle.id
             FROM dispatcher_process AS idle
             LEFT JOIN dispatcher_worker AS worker ON worker.id = idle.worker_id
            WHERE idle.idle_at IS NOT NULL AND p_queue = ANY (idle.queues) AND idle.id IS DISTINCT FROM p_not
              AND (idle.worker_id IS NULL OR NOT pg_try_advisory_xact_lock_shared(hashtextextended(idle.id::text, 0)))
              AND worker.stopped_at IS NULL AND worker.lost_at IS NULL
              AND COALESCE(worker.seen_at, idle.idle_at) > p_now - p_silence
              AND (p_key IS NULL
                   OR COALESCE((SELECT key.own > 0 FROM @room(ARRAY[p_key], idle.worker_id, p_now, '0', '0') AS key),
                               true))
            ORDER BY idle.idle_at, idle.id
            LIMIT 1
              FOR NO KEY UPDATE OF idle SKIP LOCKED)
  RETURNING process.id INTO v_process;
  RETURN v_process;
END $$;
