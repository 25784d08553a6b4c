-- take: the one way in. Records the ends given, and starts up to `p_room` calls of a worker's queues, as far as every
-- limit of every key has room: they are active, or with `p_becomes` dispatched, to be published and claimed. Up to
-- `p_publish` calls of queues that the broker delivers are dispatched too, where their turn has come on a key.
-- What another transaction has locked is skipped: it stays where the next trip finds it, or leaves a note.
-- It reads from top to bottom: record, lock, count, choose, write, leave nothing behind.
-- Returns a row for each call that starts or is dispatched, one for each that ends or is put off (`fate`), and a last
-- one without a call: workers to notify after the commit (`wake`), when to come again (`again_at`), queues that the
-- broker delivers and that have lanes ready (`publish`), the ends that were recorded, those that must be brought again,
-- and whether calls wait for the room of a key, or will soon (`is_full`). p_tasks: those that the worker knows; NULL:
-- any. p_process: who takes for the worker; if it may be marked as idle (p_is_marked), and starts something, it is no
-- more; if nothing starts, and it may rest (p_may_rest), it is.
-- p_pulled: calls are fetched over HTTP, with a lease of their own. p_due, p_stride: when each of p_queues is due by
-- its weight, and by how much a start moves that; NULL: all take turns. p_is_strict: p_queues are served in their
-- order.
CREATE FUNCTION @take(p_worker uuid, p_queues text[], p_tasks text[], p_room int, p_becomes text, p_publish int,
    p_process uuid, p_is_marked bool, p_may_rest bool, p_is_pulled bool, p_keys bigint[],
    p_calls uuid[], p_tickets uuid[], p_claims uuid[], p_states text[], p_reasons text[], p_crashes smallint[],
    p_results jsonb[], p_errors jsonb[], p_waits interval[],
    p_due bigint[], p_stride bigint[], p_is_strict bool, p_tuning @tuning, p_now timestamptz)
RETURNS TABLE (id uuid, ticket uuid, state text, task text, args jsonb, kwargs jsonb, call_data jsonb, headers jsonb,
    options jsonb, queue text, attempt int, retry jsonb, chosen_keys jsonb, scheduled_at timestamptz,
    expires_at timestamptz, key_ids bigint[], is_counted bool, start_at timestamptz,
    fate text, key text, wake uuid[], again_at timestamptz, publish text[], ended uuid[], locked uuid[], freed bigint[],
    is_full bool, at timestamptz, turn bigint)
LANGUAGE plpgsql SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET enable_bitmapscan = 'off'
SET enable_hashjoin = 'off' SET enable_mergejoin = 'off' SET jit = 'off' SET lock_timeout = '20ms'
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := COALESCE(p_now, clock_timestamp());
  v_open bigint[] := p_keys;
  v_ends record;
  v_found @found;
  v_chosen @chosen;
  v_keys @key_room[] := '{}';                        -- those with lanes that stay parked
  v_key @key_room;
  v_queues text[];
  v_freed record;
  v_queue text;
  v_served_by text;                                  -- its delivery
  v_has_room bool;
  v_is_ready bool := false;                          -- lanes of this worker's queues are
  v_least bigint;                                    -- the room of the key that has least
  v_delivery text := CASE WHEN p_becomes = 'dispatched' THEN 'broker' WHEN p_is_pulled THEN 'http' ELSE 'direct' END;
  v_settled int := 0;                                -- calls that ended or were put off
  v_is_useful bool;                                  -- the trip did something, or had no room
  n int;                                             -- the queue, as an index of those that are published
  v_fair text[] := '{}';                             -- queues with lanes that keep their turns on keys with room
BEGIN
  -- 1 Record the ends given. Look at the keys that they free.
  ended := '{}';
  locked := '{}';
  is_full := false;
  IF cardinality(p_calls) > 0 THEN
    v_ends := @record_ends(p_calls, p_tickets, p_claims, p_states, p_reasons, p_crashes, p_results, p_errors, p_waits,
                           v_now);
    ended := v_ends.ended;
    locked := v_ends.locked;
    freed := v_ends.freed;
    v_open := v_open || freed;
  END IF;

  -- 2 Lock the lanes that may be served, and their keys; count. 3 Choose.
  v_found := @find_lanes(p_worker, p_queues, v_delivery, p_room, p_publish, v_open, p_tuning, p_now);
  v_chosen := @choose(v_found, p_worker, p_queues, p_tasks, p_room, p_becomes, p_due, p_stride, p_is_strict, p_tuning);
  v_now := v_found.now;
  v_open := v_chosen.open || v_found.turn_keys;
  v_queues := v_found.queues;
  again_at := v_found.again_at;

  -- 4 Write: the calls, their slots and starts; what else became of calls; the lanes.
  IF v_chosen.starts <> '{}' THEN
    RETURN QUERY
    WITH start AS MATERIALIZED (
      SELECT start.call, start.at, start.state, start.chosen, start.key_ids, start.costs, start.is_counted, start.turn,
             gen_random_uuid() AS ticket, start.state = 'active' AS is_active
        FROM unnest(v_chosen.starts) WITH ORDINALITY
          AS start (call, at, state, chosen, key_ids, costs, is_counted, turn)
    ), held AS (
      INSERT INTO dispatcher_slot (call_id, key_id, cost, worker_id, started_at, lease_until, pulled_until,
                                   is_confirmed)
      SELECT start.call, spent.key_id, spent.cost,
             CASE WHEN start.is_active THEN p_worker END,
             CASE WHEN start.is_active THEN start.at END,
             CASE WHEN start.is_active THEN start.at + p_tuning.lease ELSE v_now + p_tuning.dispatch_lease END,
             CASE WHEN start.is_active AND p_is_pulled THEN v_now + p_tuning.lease END, false
        FROM start
       CROSS JOIN LATERAL unnest(start.key_ids, start.costs) AS spent (key_id, cost))
    UPDATE dispatcher_callqueue AS call
       SET state = start.state, ticket = start.ticket, chosen_keys = start.chosen, dispatched_at = v_now,
           claim = CASE WHEN start.is_active THEN start.ticket ELSE call.claim END,
           published_at = CASE WHEN start.is_active THEN v_now END,
           started_at = CASE WHEN start.is_active THEN start.at END,
           attempt = CASE WHEN start.is_active THEN call.attempt + 1 ELSE call.attempt END,
           returns = CASE WHEN start.is_active THEN 0 ELSE call.returns END
      FROM start
     WHERE call.id = ANY (ARRAY(SELECT start.call FROM start)) AND call.id = start.call
    RETURNING call.id, call.ticket, call.state::text, call.task::text, call.args, call.kwargs, call.call_data,
              call.headers, call.options, call.queue::text, call.attempt, call.retry, call.chosen_keys,
              call.scheduled_at, call.expires_at, array_remove(start.key_ids, NULL), start.is_counted, start.at,
              NULL::text, NULL::text, NULL::uuid[], NULL::timestamptz, NULL::text[], NULL::uuid[], NULL::uuid[],
              NULL::bigint[], NULL::bool, v_now, start.turn;
    IF v_chosen.counts THEN PERFORM @count_starts(v_chosen.counted || v_chosen.keys); END IF;
    IF random() < 0.004 THEN PERFORM @hint_slots(v_found.ids); END IF;
  END IF;
  IF v_chosen.fates <> '{}' THEN
    RETURN QUERY
    SELECT fate.id, NULL::uuid, fate.state, fate.task, NULL::jsonb, NULL::jsonb, NULL::jsonb, NULL::jsonb, NULL::jsonb,
           fate.queue, fate.attempt, NULL::jsonb, NULL::jsonb, NULL::timestamptz, NULL::timestamptz, NULL::bigint[],
           NULL::bool, NULL::timestamptz, fate.fate, fate.key,
           NULL::uuid[], NULL::timestamptz, NULL::text[], NULL::uuid[], NULL::uuid[], NULL::bigint[], NULL::bool, v_now,
           NULL::bigint
      FROM @settle(v_chosen.fates, p_tuning, v_now) AS fate;
    GET DIAGNOSTICS v_settled = ROW_COUNT;
  END IF;
  IF p_tuning.keeps_events AND (v_chosen.starts <> '{}' OR v_chosen.moves <> '{}' OR v_chosen.fates <> '{}') THEN
    PERFORM @note_limits(v_found, v_chosen, v_found.now + p_tuning.horizon);
  END IF;
  IF v_chosen.lines IS NOT NULL THEN PERFORM @pay(v_chosen.lines); END IF;
  IF v_found.lanes <> '{}' THEN PERFORM @write_lanes(v_found, v_chosen, p_queues); END IF;

  -- 5 Leave nothing behind: what must be looked at later is noted; the room that is left goes to lanes parked on it.
  IF v_found.turn_keys <> '{}' THEN                  -- lanes of other queues may be ready now
    v_queues := v_queues || ARRAY(SELECT lane.queue FROM unnest(v_found.lanes) AS lane WHERE lane.taker <> 'mine');
  END IF;
  IF v_found.is_parked OR v_chosen.moves <> '{}' THEN
    v_keys := ARRAY(
      SELECT key FROM unnest(v_chosen.keys) AS key
       WHERE key.id = ANY (v_open)
         AND (SELECT site.lane_id FROM dispatcher_lanesite AS site WHERE site.place = key.id LIMIT 1) IS NOT NULL);
  END IF;
  FOREACH v_key IN ARRAY v_keys LOOP
    IF v_key.room > 0 AND COALESCE(v_key.next_at <= v_now + p_tuning.horizon, true) THEN
      IF v_key.fair_by IS NULL THEN
        v_freed := @free_lanes(v_key.id, v_key.room, ARRAY(SELECT move.lane FROM unnest(v_chosen.moves) AS move));
        v_queues := v_queues || v_freed.queues;
      ELSE
        v_freed := @show_lanes(v_key.id, v_now);
        v_fair := v_fair || v_freed.queues;
      END IF;
      IF v_freed.is_short THEN
        v_chosen.notes := v_chosen.notes || (v_now + interval '20 milliseconds', NULL, v_key.id)::@pending;
        again_at := LEAST(again_at, v_now + interval '20 milliseconds');
      END IF;
    ELSE
      is_full := true;
      v_chosen.notes := v_chosen.notes
        || (@opens_at(v_key, 1, v_chosen.keys, p_worker, p_tuning, v_found.since), NULL, v_key.id)::@pending;
    END IF;
  END LOOP;
  IF v_chosen.notes <> '{}' OR v_found.busy && v_open THEN
    INSERT INTO dispatcher_note (at, lane_id, key_id)
    SELECT DISTINCT note.at, note.lane_id, note.key_id
      FROM (SELECT note.at, note.lane_id, note.key_id FROM unnest(v_chosen.notes) AS note
             UNION ALL
            SELECT v_now + interval '20 milliseconds', NULL, busy.id
              FROM unnest(v_found.busy) AS busy (id)
             WHERE busy.id = ANY (v_open)) AS note
     WHERE note.at IS NOT NULL
       AND (note.key_id = ANY (v_found.busy)         -- who holds that key may have just read the note that is there
            OR NOT EXISTS (SELECT FROM dispatcher_note AS earlier
                            WHERE earlier.key_id = note.key_id AND earlier.at <= note.at
                              -- Older ones are left to ticks.
                              AND earlier.at > COALESCE(p_tuning.notes, '-infinity')));
    -- What opens with time is a tick's where calls are dispatched.
    again_at := LEAST(again_at,
                      CASE WHEN p_becomes = 'active' THEN (SELECT min(note.at) FROM unnest(v_chosen.notes) AS note) END,
                      CASE WHEN v_found.busy && v_open THEN v_now + interval '20 milliseconds' END);
  END IF;
  v_is_useful := v_chosen.room_left <= 0 OR v_chosen.starts <> '{}' OR v_settled > 0;
  IF NOT v_is_useful THEN
    v_is_useful := EXISTS (SELECT FROM unnest(v_chosen.moves) AS move WHERE move.is_turn IS NOT TRUE);
  END IF;
  -- Lanes that are ready are looked for from the end: an old snapshot keeps those that were served in front of them.
  v_queues := ARRAY(
    SELECT DISTINCT mine.name FROM unnest(v_queues || v_fair || p_queues) AS mine (name)
     WHERE mine.name = ANY (v_fair)
        OR (SELECT site.lane_id FROM dispatcher_lanesite AS site
             WHERE site.place = 0 AND site.queue = mine.name
             ORDER BY site.priority, site.served_at DESC, site.lane_id DESC LIMIT 1) IS NOT NULL
     ORDER BY mine.name);
  wake := v_chosen.wake;
  publish := '{}';
  FOREACH v_queue IN ARRAY v_queues LOOP
    v_served_by := COALESCE((SELECT stored.delivery FROM dispatcher_queue AS stored WHERE stored.name = v_queue),
                            'broker');
    -- Where as many are on their way as may be, their ends come again.
    n := array_position(v_found.published, v_queue);
    v_has_room := v_queue <> ALL (v_found.full_queues)
      AND (v_chosen.publish_left[n] = 0
           AND v_found.publish_room[n] < CASE WHEN p_becomes = 'dispatched' AND v_queue = ANY (p_queues) THEN p_room
                                              ELSE p_publish END) IS NOT TRUE;
    v_is_ready := v_is_ready OR (v_queue = ANY (p_queues) AND v_has_room);
    -- A trip that could have served them and did nothing found them locked: so would others, and wake it in turn.
    IF v_served_by = 'broker' THEN
      IF v_has_room THEN publish := publish || v_queue; END IF;
    ELSIF v_is_useful OR v_queue <> ALL (p_queues) OR v_served_by <> v_delivery THEN
      wake := array_remove(wake || @wake(v_queue, NULL, p_process, p_tuning.silence, v_now), NULL);
    END IF;
  END LOOP;
  FOREACH v_key IN ARRAY v_chosen.keys LOOP
    v_least := LEAST(v_least, v_key.room);
  END LOOP;
  -- Where as many starts as a process takes ahead (16) would fill a key, it would keep them from the others.
  is_full := is_full OR COALESCE(v_least <= 0 OR v_is_ready AND v_least < 16, false);
  IF v_is_ready AND p_room > 0 THEN
    again_at := CASE WHEN v_is_useful THEN v_now ELSE LEAST(again_at, v_now + interval '20 milliseconds') END;
  END IF;
  -- Who has dispatched the calls of others alone is idle, too. Who has locked the mark is taking it: come again.
  IF v_chosen.room_left = p_room AND p_may_rest AND NOT p_is_marked AND COALESCE(again_at > v_now, true) THEN
    UPDATE dispatcher_process AS process
       SET idle_at = v_now, queues = p_queues
     WHERE process.id = (SELECT mine.id FROM dispatcher_process AS mine
                       WHERE mine.id = p_process FOR NO KEY UPDATE SKIP LOCKED);
    IF NOT FOUND THEN                                -- beside one that is being taken an INSERT would wait
      INSERT INTO dispatcher_process (id, worker_id, queues, idle_at)
      SELECT p_process, p_worker, p_queues, v_now
       WHERE NOT EXISTS (SELECT FROM dispatcher_process AS mine WHERE mine.id = p_process)
          ON CONFLICT (id) DO NOTHING;
      again_at := v_now + interval '2 milliseconds';
    END IF;
  ELSIF p_is_marked AND (v_chosen.room_left < p_room OR NOT p_may_rest) THEN
    UPDATE dispatcher_process AS process
       SET idle_at = NULL
     WHERE process.id = (SELECT mine.id FROM dispatcher_process AS mine
                       WHERE mine.id = p_process AND mine.idle_at IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  -- A trip that has only dispatched does not wait for the disk: others wait for its locks until it is committed. What a
  -- crash of the server loses of it waits again. None of its calls was claimed: the commit of a claim waits for the
  -- disk, and so for all that was written before it.
  IF p_calls = '{}' AND p_becomes = 'dispatched' AND v_settled = 0 THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  at := v_now;
  RETURN NEXT;
END $$;
