-- note_limits: write into the event log which calls a limit stops, and which of those that it has stopped go. Each wait
-- of a call is one event: the latest of a call shows what it waits for. A person, a block and its ramp are no limits.
-- A group that stops a call without a limit of its own is named with the limit of a member. Relies on entry_job.
CREATE FUNCTION @note_limits(p_found @found, p_chosen @chosen, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO dispatcher_eventlogentry (kind, queue, data, at)
  SELECT 'rate_limit.released', latest.queue, latest.data - 'limit' - 'current', clock_timestamp()
    FROM unnest(p_chosen.starts) AS start
   CROSS JOIN LATERAL (SELECT entry.kind, entry.queue, entry.data FROM dispatcher_eventlogentry AS entry
                        WHERE entry.data ->> 'job_id' = start.call::text ORDER BY entry.id DESC LIMIT 1) AS latest
   WHERE latest.kind = 'rate_limit.exceeded'
   UNION ALL
  SELECT 'rate_limit.exceeded', call.queue, jsonb_build_object('job_id', call.id, 'key', key.name) || tight.data,
         clock_timestamp()
    FROM (SELECT move.stopped AS call, move.place AS key_id FROM unnest(p_chosen.moves) AS move
           UNION ALL
          SELECT fate.call, fate.key_id FROM unnest(p_chosen.fates) AS fate WHERE fate.fate IN ('later', 'oversized'))
         AS stop
    JOIN dispatcher_callqueue AS call ON call.id = stop.call
    JOIN unnest(p_found.keys) AS key ON key.id = stop.key_id
   CROSS JOIN LATERAL (
         SELECT jsonb_build_object('strategy', strict.strategy, 'limit', strict.most, 'current', strict.spent) AS data
           FROM unnest(p_found.keys) AS before
           JOIN unnest(p_chosen.keys) AS after ON after.id = before.id
          CROSS JOIN LATERAL (       -- what leaves the least room, and how much of it is spent after this trip
                VALUES (1, 'throttle', after.throttle_limit, after.unstarted, after.next_at > p_until),
                       (2, 'concurrency', after.concurrency, after.held,
                        before.concurrency - before.held <= before.room),
                       (3, 'rate', after.rate_limit, after.rate_limit - before.room + after.held - before.held,
                        before.ramp_from IS NULL)) AS strict (n, strategy, most, spent, is_strictest)
          WHERE strict.most IS NOT NULL AND strict.is_strictest AND before.closed_until IS NULL
            AND (before.id = key.id OR (key.is_group AND before.id = ANY (@members_of(key.name))))
          ORDER BY before.id = key.id DESC, strict.n
          LIMIT 1) AS tight
   WHERE (SELECT (entry.kind, entry.data ->> 'key') = ('rate_limit.exceeded', key.name)
            FROM dispatcher_eventlogentry AS entry
           WHERE entry.data ->> 'job_id' = call.id::text ORDER BY entry.id DESC LIMIT 1) IS NOT TRUE;
END $$;
