-- delete_marks: delete the marks of fetches that waited in a process that has died (see mark_waiting).
DELETE FROM dispatcher_feed AS feed
 WHERE COALESCE(feed.idle_at < {{now}} - %(retention)s::interval, true)
   AND feed.worker_id IS NULL
