-- choose: which calls of the lanes that were found start, what else becomes of calls, and where lanes go. Who goes
-- first, and what stops a call, is decided here and nowhere else. Writes nothing but the idle marks of workers (see
-- wake).
-- One call of each lane in turn: by priority, then the queue that is due by its weight, then the lane for which room
-- was kept, then the least recently served.
-- A lane of another queue whose turn it is gets the room if a worker of that queue is idle: it is woken, and the room
-- is kept for the workers of that queue for a moment. Else it is passed over once; after one round the room is kept for
-- them for `keep`. If none comes, the lane is ready for them, and until one looks at it no room is kept for others of
-- the queue, which are ready in their turn: else each lane of a busy worker would close the key for `keep`.
CREATE FUNCTION @choose(p_found @found, p_worker uuid, p_queues text[], p_tasks text[], p_room int, p_becomes text,
    p_due bigint[], p_stride bigint[], p_is_strict bool, p_tuning @tuning) RETURNS @chosen LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := p_found.now;
  v_until timestamptz := p_found.now + p_tuning.horizon;
  v_ids bigint[] := p_found.ids;
  v_keys @key_room[] := p_found.keys;
  v_publish int[] := p_found.publish_room;
  v_behind bigint[] := array_fill(0, ARRAY[cardinality(p_found.ids)]);     -- the cost of each key that is put off
  v_key @key_room;
  v_counted @key_room[] := '{}';
  v_counted_at timestamptz;
  v_left int := p_room;
  v_due bigint[] := p_due;
  v_most int := p_room;                              -- how many calls of a lane are looked at
  v_starts @start[] := '{}';
  v_start @start;
  v_counts bool := false;
  v_fates @fate[] := '{}';
  v_served bigint[] := '{}';
  v_moves @move[] := '{}';
  v_move @move;
  v_notes @pending[] := '{}';
  v_wake uuid[] := '{}';
  v_open bigint[] := p_found.open;
  v_done bigint[] := '{}';                           -- lanes that are settled
  v_over uuid[] := '{}';                             -- calls that are settled
  v_is_over bool;
  v_met bigint[] := '{}';                            -- the lanes of the calls that are decided
  v_short int;                                       -- the priority of a lane that may have more calls than were read
  v_head @head;
  v_lane @lane;
  v_call record;
  v_at_queue int;                                    -- its queue among those that are published
  v_is_own bool;                                     -- what this worker holds stops it: else the broker chooses one
  v_kind int;
  v_least int;
  v_by int;                                          -- the key that stops it, as an index
  v_by_id bigint;
  v_by_cost int;
  v_cost int;
  v_at timestamptz;
  v_opens timestamptz;
  v_ks int[];                                        -- what it spends: indexes of keys, and costs
  v_costs int[];
  v_members jsonb;
  v_worker uuid;
  v_seated bigint[];                                 -- lanes whose share takes turns on a key of theirs, see shares
  v_seats @seat[];
  v_lines @line[];
  v_ranked uuid[];                                   -- their calls, with the rounds of these
  v_rounds bigint[];
  v_one_by_one bool;                                 -- rounds hold for one start
  s int;                                             -- the seat of its lane
  v_line int;
  k int;
  m int;
BEGIN
  IF v_publish <> '{}' THEN v_most := GREATEST(v_most, (SELECT max(room) FROM unnest(v_publish) AS room)); END IF;
  v_most := v_most / GREATEST(1, COALESCE(cardinality(p_found.lanes), 0)) + 1;
  FOR i IN 1 .. cardinality(v_ids) LOOP
    IF v_keys[i].fair_by IS NOT NULL THEN
      SELECT share.lanes, share.seats, share.lines INTO v_seated, v_seats, v_lines
        FROM @shares(p_found.lanes, v_ids, v_most) AS share;
      v_one_by_one := p_stride IS NOT NULL OR p_is_strict OR cardinality(v_publish) > 1
        OR EXISTS (SELECT FROM unnest(p_found.lanes) AS lane WHERE lane.taker <> 'mine');
      EXIT;
    END IF;
  END LOOP;
  LOOP
    v_is_over := true;
    v_short := NULL;
    IF v_seats IS NOT NULL AND cardinality(p_found.lanes) > 1 THEN
      SELECT ranked.calls, ranked.rounds INTO v_ranked, v_rounds
        FROM @rounds(v_seated, v_seats, v_lines, v_met, v_done, v_over, v_one_by_one) AS ranked;
    END IF;
    FOREACH v_head IN ARRAY @heads(p_found, p_queues, p_tasks, p_becomes, v_most, v_seats, v_seated, v_ranked, v_rounds,
                                   v_met, v_done, v_over, v_due, p_stride, p_is_strict) LOOP
      v_lane := p_found.lanes[v_head.lane];
      CONTINUE WHEN v_lane.id = ANY (v_done) OR (v_lane.taker = 'mine' AND v_left = 0);
      v_at_queue := CASE WHEN v_lane.taker = 'published' OR p_becomes = 'dispatched'
                         THEN array_position(p_found.published, v_lane.queue) END;
      CONTINUE WHEN v_publish[v_at_queue] = 0;
      IF v_lane.priority < v_short OR (v_short IS NOT NULL AND (p_stride IS NOT NULL OR p_is_strict)) THEN
        v_is_over := false;                          -- more calls of that lane may come before this one
        EXIT;
      END IF;
      v_met := v_met || v_lane.id;
      IF v_seats IS NOT NULL THEN
        s := array_position(v_seated, v_lane.id);
        v_line := v_seats[s].line;
      END IF;

      -- What stops it: 1 a limit that never allows it, 2 a limit, 3 a lock, 4 what this worker holds; 9 nothing.
      v_least := 9;
      v_by_id := NULL;
      v_at := v_now;
      v_opens := NULL;
      v_ks := '{}';
      v_costs := '{}';
      v_members := NULL;
      FOR i IN 1 .. CASE WHEN v_head.fate IS NULL THEN cardinality(v_lane.key_ids) ELSE 0 END LOOP
        v_cost := COALESCE(v_head.key_costs[i], 1);
        k := array_position(v_ids, v_lane.key_ids[i]);
        m := NULL;
        IF v_keys[k].is_group THEN                   -- the member with most room, of this worker if any
          SELECT member.ordinality INTO m
            FROM unnest(v_keys) WITH ORDINALITY AS member
           WHERE member.room >= v_cost AND member.fits >= v_cost AND COALESCE(member.next_at <= v_until, true)
             AND NOT member.is_group AND starts_with(member.name, rtrim(v_keys[k].name, '*'))
           ORDER BY member.own >= v_cost DESC, member.room DESC, member.last_at NULLS FIRST, member.id
           LIMIT 1;
        END IF;
        v_kind := CASE WHEN k IS NULL AND v_lane.key_ids[i] = ANY (p_found.busy) THEN 3
                       WHEN k IS NULL THEN 9         -- a deleted key has no limit
                       WHEN v_keys[k].fits < v_cost THEN 1
                       WHEN v_keys[k].room < v_cost OR v_keys[k].next_at > v_until THEN 2
                       WHEN v_keys[k].is_group AND m IS NULL
                       THEN CASE WHEN v_ids[k] = ANY (p_found.busy) THEN 3 ELSE 2 END
                       WHEN v_lane.taker = 'mine' AND (v_keys[k].own < v_cost OR v_keys[m].own < v_cost) THEN 4
                       WHEN v_lane.taker = 'published'   -- the broker chooses the worker
                            AND COALESCE(v_keys[k].per_worker, v_keys[m].per_worker) IS NOT NULL THEN 4
                       ELSE 9 END;
        IF v_kind < v_least THEN
          v_least := v_kind;
          v_by := k;
          v_by_id := v_lane.key_ids[i];
          v_by_cost := v_cost;
        END IF;
        IF k IS NOT NULL THEN
          v_ks := v_ks || k;
          v_costs := v_costs || v_cost;
        END IF;
        IF m IS NOT NULL THEN
          v_ks := v_ks || m;
          v_costs := v_costs || v_cost;
          v_members := COALESCE(v_members, '{}') || jsonb_build_object(v_keys[k].name, v_keys[m].name);
        END IF;
        CONTINUE WHEN v_keys[k].next_at IS NULL AND v_keys[m].next_at IS NULL;
        v_at := GREATEST(v_at, @paced(v_keys[k].next_at, v_cost, v_keys[k].throttle_limit, v_keys[k].throttle_period,
                                      v_now, p_tuning.lead),
                         @paced(v_keys[m].next_at, v_cost, v_keys[m].throttle_limit, v_keys[m].throttle_period,
                                v_now, p_tuning.lead));
      END LOOP;

      IF v_head.fate IS NOT NULL OR v_least = 1 OR (v_least = 2 AND v_lane.on_limit <> 'wait') THEN
        -- The call goes elsewhere; those behind it go on.
        IF v_least = 2 AND v_lane.on_limit = 'reschedule' THEN
          -- Only those that are put off themselves come after it: it has reserved nothing, and gave up its place.
          v_key := v_keys[v_by];
          v_key.unstarted := v_key.unstarted + v_behind[v_by];
          v_key.next_at := v_key.next_at + @spacing(v_behind[v_by], v_key.throttle_limit, v_key.throttle_period);
          v_opens := @opens_at(v_key, v_by_cost, v_keys, p_worker, p_tuning, p_found.since);
          v_behind[v_by] := v_behind[v_by] + v_by_cost;
        END IF;
        v_fates := v_fates || (v_head.call,
          COALESCE(v_head.fate, CASE WHEN v_lane.on_limit = 'drop' THEN 'dropped' WHEN v_least = 1 THEN 'oversized'
                                     ELSE 'later' END),
          COALESCE(v_opens, v_now + p_tuning.later), v_by_id, v_by_cost, v_lane.queue)::@fate;
        v_over := v_over || v_head.call;
        CONTINUE WHEN cardinality(v_fates) > 50;     -- enough for one trip
        IF v_head.turn = v_most THEN
          v_short := GREATEST(v_short, v_lane.priority);
          v_is_over := false;
        END IF;
        CONTINUE WHEN p_stride IS NULL AND v_seats IS NULL;
        v_is_over := false;                          -- by weight: whose turn is it now?
        EXIT;
      ELSIF v_least < 9 THEN                         -- its lane waits
        v_done := v_done || v_lane.id;
        v_is_own := v_least = 4 AND v_lane.taker = 'mine' AND (p_becomes = 'active' OR p_worker IS NOT NULL);
        v_move := (v_lane.id, CASE WHEN v_is_own THEN -1 ELSE v_by_id END,
                   NULL, NULL, CASE WHEN v_least = 2 THEN v_head.call END, false, v_lane.queue);
        IF s IS NOT NULL AND (v_least = 3 OR (v_least = 2 AND v_by_id = v_lines[v_line].key_id)) THEN
          IF v_least = 2 AND v_seats[s].turn IS NULL THEN           -- its share pays for the turn
            v_seats[s].turn := v_lines[v_line].next;
            v_seats[s].length := @turn(v_by_cost, v_lines[v_line].weight);
            v_lines[v_line].next := v_lines[v_line].next + v_seats[s].length;
          END IF;
          IF v_seats[s].turn IS NOT NULL THEN
            v_move.place := v_lines[v_line].key_id;
            v_move.served_at := @turn_at(v_seats[s].turn);
            v_move.is_turn := true;
          END IF;
        END IF;
        v_moves := v_moves || v_move;
        CASE v_least
          WHEN 2 THEN                                -- calls behind it do not take the room that it waits for
            v_keys[v_by].room := 0;
            v_open := v_open || v_by_id;
            v_opens := @opens_at(v_keys[v_by], v_by_cost, v_keys, p_worker, p_tuning, p_found.since);
            IF v_opens IS NOT NULL THEN v_notes := v_notes || (v_opens, NULL, v_by_id)::@pending; END IF;
          WHEN 3 THEN
            v_notes := v_notes || (v_now + interval '20 milliseconds', NULL, v_move.place)::@pending;
          ELSE
            IF v_is_own THEN
              v_keys[v_by].own := 0;
              v_wake := v_wake || @wake(v_lane.queue, v_by_id, NULL, p_tuning.silence, v_now);
            END IF;
        END CASE;
        CONTINUE WHEN p_stride IS NULL AND (s IS NULL OR (v_move.is_turn AND v_least = 2));
        v_is_over := false;
        EXIT;
      ELSIF v_lane.taker <> 'others' THEN            -- it starts
        v_start := (v_head.call, v_at, CASE WHEN v_lane.taker = 'mine' THEN p_becomes ELSE 'dispatched' END, v_members,
                    CASE WHEN v_ks = '{}' THEN '{NULL}' ELSE '{}' END,
                    CASE WHEN v_ks = '{}' THEN '{1}' ELSE v_costs END, false)::@start;
        v_over := v_over || v_head.call;
        v_served := array_remove(v_served, v_lane.id) || v_lane.id;
        IF v_head.turn = v_most THEN v_short := GREATEST(v_short, v_lane.priority); END IF;
        IF v_at_queue IS NOT NULL THEN
          v_publish[v_at_queue] := v_publish[v_at_queue] - 1;
        END IF;
        IF v_lane.taker = 'mine' THEN
          v_left := v_left - 1;
          IF p_stride IS NOT NULL THEN
            k := array_position(p_queues, v_lane.queue);
            v_due[k] := v_due[k] + p_stride[k];
          END IF;
        END IF;
        IF s IS NOT NULL THEN                        -- the key's clock moves; its share pays if it has not for a turn
          k := v_seats[s].clock;
          IF v_seats[s].turn IS NOT NULL THEN
            v_lines[k].next := GREATEST(v_lines[k].next, v_seats[s].turn);
            v_seats[s].turn := NULL;
          ELSE
            IF v_lines[v_line].key_id <> ALL (p_found.turn_keys) THEN    -- else it is behind those that wait
              v_lines[k].next := GREATEST(v_lines[k].next, v_lines[v_line].next);
            END IF;
            v_lines[v_line].next := v_lines[v_line].next
              + @turn(COALESCE(v_head.key_costs[v_seats[s].cost_at], 1), v_lines[v_line].weight);
          END IF;
        END IF;
        IF v_seats IS NOT NULL AND (v_head.turn = COALESCE(v_seats[s].heads, v_most) OR (v_one_by_one AND s > 0)) THEN
          v_is_over := false;                        -- calls that were not read may come next
        END IF;
      ELSE                                           -- it is first, and others' to start
        v_done := v_done || v_lane.id;
        v_opens := CASE WHEN isfinite(v_lane.kept_until) THEN v_lane.kept_until END;
        IF v_opens IS NULL THEN
          v_worker := @wake(v_lane.queue, v_lane.place, NULL, p_tuning.silence, v_now);
          v_wake := v_wake || v_worker;
          v_opens := CASE WHEN v_worker IS NOT NULL THEN v_now + interval '100 milliseconds'
                          WHEN v_lane.kept_until = 'infinity' AND EXISTS (
                                 SELECT FROM dispatcher_lanesite AS site
                                  WHERE site.queue = v_lane.queue AND site.kept_until <= v_now AND site.place = 0)
                          THEN v_now
                          WHEN v_lane.kept_until = 'infinity' THEN v_now + p_tuning.keep END;
        END IF;
        v_move := (v_lane.id, v_lane.place, @turn_at(v_seats[s].turn), COALESCE(v_opens, 'infinity'), NULL,
                   v_seats[s].turn IS NOT NULL, NULL)::@move;
        IF v_opens IS NULL THEN                      -- passed over: it waits behind all others of the key for a round
          v_move.served_at := COALESCE(@turn_at(v_seats[s].turn + v_seats[s].length), v_now);
        ELSIF v_opens <= v_now AND NOT v_move.is_turn THEN
          v_move.place := 0;                         -- none has come: any worker of its queue finds it ready
        END IF;
        v_moves := v_moves || v_move;
        CONTINUE WHEN COALESCE(v_opens <= v_now, true);
      END IF;

      FOR i IN 1 .. cardinality(v_ks) LOOP
        v_key := v_keys[v_ks[i]];
        v_cost := v_costs[i];
        v_key.room := v_key.room - v_cost;
        v_counted_at := v_at + p_tuning.slack;
        IF v_key.next_at IS NOT NULL THEN
          v_counted_at := GREATEST(v_key.next_at, v_at)
            + CASE WHEN v_at > v_now AND v_lane.taker = 'mine' AND p_becomes = 'active' THEN p_tuning.paced_slack
                   ELSE '0' END;
          v_key.next_at := v_counted_at + @spacing(v_cost, v_key.throttle_limit, v_key.throttle_period);
        END IF;
        IF v_lane.taker = 'others' THEN              -- lanes may wait in vain for any of the keys
          v_notes := v_notes || (v_opens, NULL, v_key.id)::@pending;
        ELSE
          v_key.own := v_key.own - v_cost;
          v_key.held := v_key.held + v_cost;
          v_start.key_ids := v_start.key_ids || v_key.id;
          v_start.is_counted := v_start.is_counted OR v_key.rate_limit IS NOT NULL;
          IF v_start.state = 'dispatched' THEN
            v_key.unstarted := v_key.unstarted + v_cost;
          ELSIF v_key.is_counted THEN                -- each start counts from its own time on
            v_counts := true;
            IF v_key.observed IS DISTINCT FROM NULL THEN v_key := @observe(v_key, v_cost, v_now, p_tuning); END IF;
            v_counted_at := GREATEST(v_key.last_at, v_counted_at);
            IF v_key.used > 0 AND v_key.last_at < v_counted_at THEN
              v_counted := v_counted || v_key;
              v_key.total := COALESCE(v_key.total, 0) + v_key.used;
              v_key.used := 0;
            END IF;
            v_key.used := v_key.used + v_cost;
            v_key.last_cost := v_cost;
            v_key.last_at := v_counted_at;
          END IF;
        END IF;
        v_keys[v_ks[i]] := v_key;
      END LOOP;
      IF v_lane.taker <> 'others' THEN v_starts := v_starts || v_start; END IF;
      EXIT WHEN NOT v_is_over AND v_seats IS NOT NULL;
    END LOOP;
    EXIT WHEN v_is_over AND (v_short IS NULL OR (v_left = 0 AND 0 = ALL (v_publish)));
  END LOOP;
  -- A lane was passed over if others have taken the room. If none has, any worker of its queue finds it ready.
  FOR i IN 1 .. cardinality(v_moves) LOOP
    k := array_position(v_ids, v_moves[i].place);
    IF v_moves[i].kept_until = 'infinity' AND v_keys[k].room > 0 AND COALESCE(v_keys[k].next_at <= v_until, true) THEN
      s := array_position(v_seated, v_moves[i].lane);
      v_moves[i] := CASE WHEN v_seats[s].turn IS NULL THEN (v_moves[i].lane, 0, NULL, NULL, NULL, false, NULL)::@move
                         ELSE (v_moves[i].lane, v_moves[i].place, @turn_at(v_seats[s].turn), v_now, NULL, true,
                               NULL)::@move END;
    END IF;
  END LOOP;
  -- A lane that waits for a key without room is parked, though the process has no room to look at its calls: others
  -- would look at it in vain.
  IF v_left = 0 THEN
    FOR i IN 1 .. cardinality(v_ids) LOOP
      CONTINUE WHEN v_keys[i].room > 0;
      FOR v_call IN
        SELECT lane.id AS lane, lane.queue, head.id
          FROM unnest(p_found.lanes) AS lane
         CROSS JOIN LATERAL (
               SELECT call.id
                 FROM dispatcher_callqueue AS call
                WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
                  AND call.state = 'available' AND call.oversized_key_id IS NULL AND call.id <> ALL (v_over)
                ORDER BY call.position
                LIMIT 1) AS head
         WHERE v_ids[i] = ANY (lane.key_ids) AND lane.taker = 'mine' AND lane.on_limit = 'wait'
           AND lane.id <> ALL (v_done) AND array_position(v_seated, lane.id) IS NULL
      LOOP
        v_done := v_done || v_call.lane;
        v_moves := v_moves || (v_call.lane, v_ids[i], NULL, NULL, v_call.id, false, v_call.queue)::@move;
        v_open := v_open || v_ids[i];
      END LOOP;
    END LOOP;
  END IF;
  IF v_seats IS NOT NULL THEN
    SELECT lined.moves, lined.opened, lined.paid INTO v_moves, v_open, v_lines
      FROM @line_up(p_found, v_keys, v_served, v_moves, v_open, v_seated, v_seats, v_lines, v_over, v_until) AS lined;
  END IF;
  RETURN (v_starts, v_fates, v_served, v_moves, v_notes, array_remove(v_wake, NULL), v_keys, v_counts, v_counted,
          v_open, v_left, v_publish, v_lines);
END $$;
