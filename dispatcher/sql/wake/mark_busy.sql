-- mark_busy: this worker waits for no calls any more.
UPDATE dispatcher_feed AS feed
   SET idle_at = NULL
 WHERE feed.worker_id = %(worker)s::uuid AND feed.idle_at IS NOT NULL
