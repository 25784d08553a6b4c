-- note_entries: write into the event log.
INSERT INTO dispatcher_eventlogentry (kind, queue, call_id, data, at)
SELECT entry.kind, entry.queue, (entry.data::jsonb ->> 'job_id')::uuid, entry.data::jsonb, clock_timestamp()
  FROM unnest(%(kinds)s::text[], %(queues)s::text[], %(data)s::text[]) AS entry (kind, queue, data)
