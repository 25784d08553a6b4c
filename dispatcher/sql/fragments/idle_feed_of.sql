-- idle_feed_of(queue, keys, moment): lock the worker that has been idle for longest of those that take the calls of a
-- queue, and have room of these keys as far as each worker may hold a part of them;
-- one that sends no heartbeats for `silence` is left out.
SELECT feed.worker_id
  FROM dispatcher_feed AS feed
  JOIN dispatcher_worker AS worker ON worker.id = feed.worker_id
 WHERE feed.idle_at IS NOT NULL AND {{queue}} = ANY (feed.queues) AND NOT feed.reached_key_ids && {{keys}}
   AND worker.stopped_at IS NULL AND worker.lost_at IS NULL AND worker.seen_at > {{moment}} - %(silence)s::interval
 ORDER BY feed.idle_at, feed.worker_id
 LIMIT 1
   FOR NO KEY UPDATE OF feed SKIP LOCKED
