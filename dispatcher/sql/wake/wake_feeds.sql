-- wake_feeds: notify one idle worker of each of these queues; none where all are busy, so that no commit notifies in
-- vain. A worker that sends no heartbeats for `silence` is not asked. For a transaction of its own, after the caller's
-- commit: a commit that notifies holds a lock of the whole database.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), chosen AS MATERIALIZED (
    SELECT idle.worker_id
      FROM clock
     CROSS JOIN (SELECT DISTINCT name FROM unnest(%(queues)s::text[]) AS queue (name)) AS queue
     CROSS JOIN LATERAL (
           SELECT feed.worker_id
             FROM dispatcher_feed AS feed
             JOIN dispatcher_worker AS worker ON worker.id = feed.worker_id
            WHERE feed.idle_at IS NOT NULL AND queue.name = ANY (feed.queues)
              AND worker.stopped_at IS NULL AND worker.lost_at IS NULL
              AND worker.seen_at > clock.now - %(silence)s::interval
            ORDER BY feed.idle_at, feed.worker_id
            LIMIT 1
              FOR NO KEY UPDATE OF feed SKIP LOCKED) AS idle
), woken AS (
    UPDATE dispatcher_feed AS feed
       SET idle_at = NULL
     WHERE feed.worker_id IN (SELECT chosen.worker_id FROM chosen)
    RETURNING feed.worker_id
)
SELECT woken.worker_id, pg_notify('dispatcher_' || replace(woken.worker_id::text, '-', ''), '')::text AS notified
  FROM woken
