-- note_limits: write into the event log which calls a limit stops, and which of those that it has stopped go. Each wait
-- of a call is one event: the latest of a call shows what it waits for. A person, a block and its ramp are no limits.
-- A group that stops a call without a limit of its own is named with the limit of a member. Relies on entry_call;
-- without OFFSET 0 a plan that was made for an empty log reads all of it, by its ids.
CREATE FUNCTION @note_limits(p_found @found, p_chosen @chosen, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO dispatcher_eventlogentry (kind, queue, call_id, data, at)
  SELECT 'rate_limit.released', latest.queue, start.call, latest.data - '{limit,current}'::text[], clock_timestamp()
    FROM unnest(p_chosen.starts) AS start
   CROSS JOIN LATERAL (
         SELECT entry.kind, entry.queue, entry.data
           FROM (SELECT entry.id, entry.kind, entry.queue, entry.data FROM dispatcher_eventlogentry AS entry
                  WHERE entry.call_id = start.call OFFSET 0) AS entry
          ORDER BY entry.id DESC
          LIMIT 1) AS latest
   WHERE latest.kind = 'rate_limit.exceeded';
  WITH stop AS MATERIALIZED (
    SELECT move.stopped AS call, move.place AS key_id FROM unnest(p_chosen.moves) AS move WHERE move.stopped IS NOT NULL
     UNION ALL
    SELECT fate.call, fate.key_id FROM unnest(p_chosen.fates) AS fate WHERE fate.fate IN ('later', 'oversized')
  ), limits AS MATERIALIZED (          -- of each key, what leaves the least room, and how much of it is spent
    SELECT DISTINCT ON (key.id)
           key.id, key.name, jsonb_build_object('key', key.name, 'strategy', strict.strategy, 'limit', strict.most,
                                                'current', strict.spent) AS data
      FROM unnest(p_found.keys) AS key
      JOIN unnest(p_found.keys) AS before
        ON before.id = key.id OR (key.is_group AND before.id = ANY (@members_of(key.name)))
      JOIN unnest(p_chosen.keys) AS after ON after.id = before.id
     CROSS JOIN LATERAL (
           VALUES (1, 'throttle', after.throttle_limit, after.unstarted, after.next_at > p_until),
                  (2, 'concurrency', after.concurrency, after.held, before.concurrency - before.held <= before.room),
                  (3, 'rate', after.rate_limit, after.rate_limit - before.room + after.held - before.held,
                   before.ramp_from IS NULL)) AS strict (n, strategy, most, spent, is_strictest)
     WHERE key.id IN (SELECT stop.key_id FROM stop)
       AND strict.most IS NOT NULL AND strict.is_strictest AND before.closed_until IS NULL
     ORDER BY key.id, before.id = key.id DESC, strict.n)
  INSERT INTO dispatcher_eventlogentry (kind, queue, call_id, data, at)
  SELECT 'rate_limit.exceeded', call.queue, call.id, jsonb_build_object('job_id', call.id) || limits.data,
         clock_timestamp()
    FROM stop
    JOIN limits ON limits.id = stop.key_id
    JOIN dispatcher_callqueue AS call ON call.id = stop.call
   WHERE (SELECT entry.kind = 'rate_limit.exceeded' AND entry.data ->> 'key' = limits.name
            FROM (SELECT entry.id, entry.kind, entry.data FROM dispatcher_eventlogentry AS entry
                   WHERE entry.call_id = call.id OFFSET 0) AS entry
           ORDER BY entry.id DESC
           LIMIT 1) IS NOT TRUE;
END $$;
