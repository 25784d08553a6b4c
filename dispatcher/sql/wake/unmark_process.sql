-- unmark_process: this process is not idle any more. Who has locked the mark is taking it, maybe.
UPDATE dispatcher_process AS process
   SET idle_at = NULL
 WHERE process.id = (SELECT mine.id FROM dispatcher_process AS mine
                   WHERE mine.id = %(process)s::uuid AND mine.idle_at IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED)
