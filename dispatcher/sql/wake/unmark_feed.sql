-- unmark_feed: this process is not idle any more.
UPDATE dispatcher_feed AS feed SET idle_at = NULL WHERE feed.id = %(process)s::uuid
