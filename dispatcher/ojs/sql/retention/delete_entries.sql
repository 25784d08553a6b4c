-- delete_entries: delete one batch of what the event log has kept for long enough, the oldest first. Relies on the
-- index entry_at.
-- An array: joined, the batch could be chosen again for every row, and another one each time.
DELETE FROM dispatcher_eventlogentry AS entry
 WHERE entry.id = ANY (ARRAY(
       SELECT old.id
         FROM dispatcher_eventlogentry AS old
        WHERE old.at < (SELECT {{now}} - %(retention)s::interval)
        ORDER BY old.at
        LIMIT %(most)s::int
          FOR UPDATE SKIP LOCKED))
