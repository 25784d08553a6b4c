-- delete_mark: a fetch does not wait any more. Returns whether it was woken. A mark that another transaction has locked
-- stays, and goes with those of processes that have died: who has it locked is taking it, maybe.
DELETE FROM dispatcher_process AS process
 WHERE process.id = (SELECT mine.id FROM dispatcher_process AS mine
                   WHERE mine.id = %(mark)s::uuid FOR UPDATE SKIP LOCKED)
RETURNING process.idle_at IS NULL AS is_woken
