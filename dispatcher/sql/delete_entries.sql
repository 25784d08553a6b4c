-- delete_entries: delete what the journal has kept for long enough. Relies on the index entry_at.
DELETE FROM dispatcher_journalentry AS entry
 WHERE entry.at < COALESCE(%(now)s::timestamptz, clock_timestamp()) - %(retention)s::interval
