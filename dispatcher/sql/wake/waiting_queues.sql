-- waiting_queues: the direct queues that hold lanes while a worker of theirs is idle. Expected: none.
-- Looks at the idle workers' queues alone, so it costs nothing where no queue is direct. Relies on the index lane_held.
SELECT mine.name
  FROM (SELECT DISTINCT unnest(feed.queues) FROM dispatcher_feed AS feed WHERE feed.idle_at IS NOT NULL) AS mine (name)
 WHERE {{queue_delivery(mine.name)}} = 'direct' AND {{first_held_lane(mine.name)}} IS NOT NULL
 ORDER BY mine.name
