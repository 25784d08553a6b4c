-- note_limits: write into the event log which calls a limit stops, and which of those that it has stopped go. Each wait
-- of a call is one event: the latest of a call shows what it waits for. A person, a block and its ramp are no limits.
-- A group that stops a call without a limit of its own is named with the limit of a member.
-- What it writes is gathered without a statement, and written by one: of the 370,000 instructions that a trip took more
-- where each call stops, two thirds were spent on beginning and ending two statements. Relies on entry_call; without
-- OFFSET 0 a plan that was made for an empty log reads all of it, by its ids.
CREATE FUNCTION @note_limits(p_found @found, p_chosen @chosen, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_calls uuid[] := '{}';                            -- those that start, then those that are stopped
  v_queues text[] := '{}';                           -- and what is known of these, NULL for those that start
  v_data jsonb[] := '{}';
  v_start @start;
  v_stops @fate[] := p_chosen.fates;
  v_stop @fate;
  v_move @move;
  v_before @key_room;
  v_after @key_room;
  v_members bigint[];
  v_name text;
  v_limit jsonb;
BEGIN
  FOREACH v_start IN ARRAY p_chosen.starts LOOP
    v_calls := v_calls || v_start.call;
    v_queues := v_queues || NULL::text;
    v_data := v_data || NULL::jsonb;
  END LOOP;
  FOREACH v_move IN ARRAY p_chosen.moves LOOP
    v_stops := v_stops || (v_move.stopped, 'waits', NULL, v_move.place, NULL, v_move.queue)::@fate;
  END LOOP;
  FOREACH v_stop IN ARRAY v_stops LOOP
    CONTINUE WHEN v_stop.call IS NULL OR v_stop.fate NOT IN ('waits', 'later', 'oversized');
    v_members := ARRAY[v_stop.key_id];
    FOR i IN 0 .. cardinality(p_found.ids) LOOP      -- the key itself first
      v_after := p_chosen.keys[CASE i WHEN 0 THEN array_position(p_found.ids, v_stop.key_id) ELSE i END];
      CONTINUE WHEN v_after.id <> ALL (v_members);
      IF i = 0 THEN
        v_name := v_after.name;
        IF v_after.is_group THEN v_members := v_members || @members_of(v_name); END IF;
      END IF;
      v_before := p_found.keys[array_position(p_found.ids, v_after.id)];
      v_limit := CASE                                -- what leaves the least room, and how much of it is spent
        WHEN v_before.closed_until IS NOT NULL THEN NULL
        WHEN v_after.throttle_limit IS NOT NULL AND v_after.next_at > p_until
        THEN jsonb_build_object('strategy', 'throttle', 'limit', v_after.throttle_limit, 'current', v_after.unstarted)
        WHEN v_before.concurrency - v_before.held <= v_before.room
        THEN jsonb_build_object('strategy', 'concurrency', 'limit', v_after.concurrency, 'current', v_after.held)
        WHEN v_after.rate_limit IS NOT NULL AND v_before.ramp_from IS NULL
        THEN jsonb_build_object('strategy', 'rate', 'limit', v_after.rate_limit,
                                'current', v_after.rate_limit - v_before.room + v_after.held - v_before.held) END;
      IF v_limit IS NOT NULL THEN
        v_calls := v_calls || v_stop.call;
        v_queues := v_queues || v_stop.queue;
        v_data := v_data || (jsonb_build_object('job_id', v_stop.call, 'key', v_name) || v_limit);
        EXIT;
      END IF;
      EXIT WHEN NOT v_after.is_group AND i = 0;
    END LOOP;
  END LOOP;
  IF v_calls <> '{}' THEN
    INSERT INTO dispatcher_eventlogentry (kind, queue, call_id, data, at)
    SELECT CASE WHEN said.data IS NULL THEN 'rate_limit.released' ELSE 'rate_limit.exceeded' END,
           COALESCE(said.queue, latest.queue), said.call,
           COALESCE(said.data, latest.data - '{limit,current}'::text[]), clock_timestamp()
      FROM unnest(v_calls, v_queues, v_data) AS said (call, queue, data)
      LEFT JOIN LATERAL (
           SELECT entry.kind, entry.queue, entry.data
             FROM (SELECT entry.id, entry.kind, entry.queue, entry.data FROM dispatcher_eventlogentry AS entry
                    WHERE entry.call_id = said.call OFFSET 0) AS entry
            ORDER BY entry.id DESC
            LIMIT 1) AS latest ON true
     WHERE CASE WHEN said.data IS NULL THEN latest.kind = 'rate_limit.exceeded'
                ELSE (latest.kind = 'rate_limit.exceeded' AND latest.data ->> 'key' = said.data ->> 'key') IS NOT TRUE
           END;
  END IF;
END $$;
