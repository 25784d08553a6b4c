-- unmark_feed: this process is not idle any more. Who has locked the mark is taking it, maybe.
UPDATE dispatcher_feed AS feed
   SET idle_at = NULL
 WHERE feed.id = (SELECT mine.id FROM dispatcher_feed AS mine
                   WHERE mine.id = %(process)s::uuid AND mine.idle_at IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED)
