-- waiting_queues: the direct queues that hold lanes while a worker that could serve them is idle. Expected: none.
-- Looks at the idle workers' queues alone, so it costs nothing where no queue is direct. Lanes that spend a key of
-- which the worker holds as much as one worker may are passed over. Relies on the index lane_held.
SELECT DISTINCT mine.name
  FROM (SELECT DISTINCT unnest(feed.queues), feed.reached_key_ids
          FROM dispatcher_feed AS feed
         WHERE feed.idle_at IS NOT NULL) AS mine (name, reached)
 WHERE {{queue_delivery(mine.name)}} = 'direct' AND {{first_lane_within(mine.name, mine.reached)}} IS NOT NULL
 ORDER BY mine.name
