-- idle_feed_of(queue, keys, moment): lock the worker that has been idle for longest of those that take the calls of a
-- queue; one that sends no heartbeats for `silence` is left out. So is one that holds as much as one worker may of a
-- key that the calls spend: of these keys, or without them (NULL) of each lane that the queue holds.
SELECT feed.worker_id
  FROM dispatcher_feed AS feed
  JOIN dispatcher_worker AS worker ON worker.id = feed.worker_id
 WHERE feed.idle_at IS NOT NULL AND {{queue}} = ANY (feed.queues)
   AND CASE WHEN feed.reached_key_ids = '{}' THEN true
            WHEN {{keys}} IS NOT NULL THEN NOT feed.reached_key_ids && {{keys}}
            ELSE {{first_lane_within({{queue}}, feed.reached_key_ids)}} IS NOT NULL END
   AND worker.stopped_at IS NULL AND worker.lost_at IS NULL AND worker.seen_at > {{moment}} - %(silence)s::interval
 ORDER BY feed.idle_at, feed.worker_id
 LIMIT 1
   FOR NO KEY UPDATE OF feed SKIP LOCKED
