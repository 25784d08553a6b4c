-- delete_changes: delete one batch of the changes of keys that were kept for long enough, the oldest first. Relies on
-- the index change_at. An array: joined, the batch could be chosen again for every row, and another one each time.
DELETE FROM dispatcher_keychange AS change
 WHERE change.id = ANY (ARRAY(
       SELECT old.id
         FROM dispatcher_keychange AS old
        WHERE old.at < (SELECT {{now}} - %(retention)s::interval)
        ORDER BY old.at
        LIMIT %(most)s::int
          FOR UPDATE SKIP LOCKED))
