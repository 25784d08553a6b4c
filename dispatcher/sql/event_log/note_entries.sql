-- note_entries: write into the journal.
INSERT INTO dispatcher_journalentry (kind, queue, data, at)
SELECT entry.kind, entry.queue, entry.data::jsonb, clock_timestamp()
  FROM unnest(%(kinds)s::text[], %(queues)s::text[], %(data)s::text[]) AS entry (kind, queue, data)
