-- The functions of version a1ec3045, as a migration installs them. Written by `make functions`.

CREATE FUNCTION dispatcher_add_error_a1ec3045(p_errors jsonb, p_error jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN CASE WHEN jsonb_array_length(p_errors) < 25 THEN p_errors || p_error
              ELSE jsonb_path_query_array(p_errors, '$[0 to 4]')
                   || jsonb_path_query_array(p_errors, '$[last - 18 to last]') || p_error END;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_add_error_a1ec3045 FROM PUBLIC;

CREATE TYPE dispatcher_lane_a1ec3045 AS (
    id bigint,
    row tid,
    queue text,
    priority smallint,
    on_limit text,
    key_ids bigint[],
    place bigint,
    served_at timestamptz,
    last_served_at timestamptz,
    kept_until timestamptz,
    waits_from bigint,
    taker text
);

CREATE FUNCTION dispatcher_lanes_a1ec3045(p_queues text[], p_place bigint, p_most int, p_rows tid[], p_taker text) RETURNS dispatcher_lane_a1ec3045[]
LANGUAGE plpgsql AS $$
BEGIN
  p_rows := p_rows || ARRAY(
    SELECT front.row
      FROM unnest(p_queues) AS mine (name)
     CROSS JOIN LATERAL (
           SELECT site.ctid AS row
             FROM dispatcher_lanesite AS site
            WHERE site.place = p_place AND site.queue = mine.name
            ORDER BY site.priority DESC, site.served_at, site.lane_id
            LIMIT p_most
              FOR NO KEY UPDATE SKIP LOCKED) AS front);
  RETURN ARRAY(
    SELECT (lane.id, site.ctid, lane.queue, lane.priority, lane.on_limit,
            array_remove(lane.key_ids || (SELECT own.id FROM dispatcher_ratelimitkey AS own
                                           WHERE own.name = 'queue:' || lane.queue AND own.id <> ALL (lane.key_ids)),
                         NULL),
            site.place, site.served_at, site.last_served_at, site.kept_until, site.waits_from, p_taker)::dispatcher_lane_a1ec3045
      FROM dispatcher_lanesite AS site
     CROSS JOIN LATERAL (
           SELECT lane.id, lane.queue, lane.priority, lane.on_limit, lane.key_ids
             FROM dispatcher_lane AS lane
            WHERE lane.id = site.lane_id LIMIT 1) AS lane
     WHERE site.ctid = ANY (p_rows));
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_lanes_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_spacing_a1ec3045(p_cost bigint, p_limit int, p_period interval) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
SELECT interval '1 microsecond' * LEAST(ceil(extract(epoch FROM p_period) * 1e6 * p_cost / p_limit), 1e15)::float8
$$;
REVOKE EXECUTE ON FUNCTION dispatcher_spacing_a1ec3045 FROM PUBLIC;

CREATE TYPE dispatcher_tuning_a1ec3045 AS (
    horizon interval,
    lead interval,
    slack interval,
    paced_slack interval,
    margin interval,
    ramp interval,
    later interval,
    keep interval,
    silence interval,
    notes timestamptz,
    lease interval,
    dispatch_lease interval,
    ahead int,
    needs_worker bool,
    any_delivery bool,
    keeps_events bool
);

CREATE FUNCTION dispatcher_turn_a1ec3045(p_cost bigint, p_weight int) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
SELECT 100000 * p_cost / p_weight
$$;
REVOKE EXECUTE ON FUNCTION dispatcher_turn_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_turn_at_a1ec3045(p_turn bigint) RETURNS timestamptz LANGUAGE sql STABLE AS $$
SELECT 'epoch'::timestamptz + interval '1 microsecond' * p_turn::float8
$$;
REVOKE EXECUTE ON FUNCTION dispatcher_turn_at_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_counts_a1ec3045(p_rate int, p_override_rate int, p_throttle int, p_override_throttle int) RETURNS bool
LANGUAGE sql IMMUTABLE AS $$
SELECT COALESCE(p_rate, p_override_rate, p_throttle, p_override_throttle) IS NOT NULL
$$;
REVOKE EXECUTE ON FUNCTION dispatcher_counts_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_limited_rows_a1ec3045(p_worker uuid, p_queues text[], p_most int, p_now timestamptz) RETURNS tid[]
LANGUAGE plpgsql AS $$
BEGIN
  RETURN (
    WITH reached AS MATERIALIZED (
      SELECT slot.key_id AS id
        FROM dispatcher_slot AS slot
        JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
       WHERE slot.worker_id = p_worker
       GROUP BY slot.key_id, key.id
      HAVING sum(slot.cost) >= CASE WHEN key.override_until > p_now THEN key.override_per_worker
                                    ELSE key.per_worker END
             AND NOT key.is_observed
    ), front AS MATERIALIZED (
      SELECT seen.row
        FROM unnest(p_queues) AS mine (name)
       CROSS JOIN LATERAL (
             SELECT site.ctid AS row, site.lane_id, site.priority, site.served_at
               FROM dispatcher_lanesite AS site
              WHERE site.place = -1 AND site.queue = mine.name
              ORDER BY site.priority DESC, site.served_at, site.lane_id
              LIMIT 50) AS seen
        JOIN dispatcher_lane AS lane ON lane.id = seen.lane_id
       WHERE NOT lane.key_ids && ARRAY(SELECT reached.id FROM reached)
       ORDER BY seen.priority DESC, seen.served_at, seen.lane_id
       LIMIT p_most
    ), mine AS (
      SELECT site.ctid AS row
        FROM dispatcher_lanesite AS site
       WHERE site.ctid = ANY (ARRAY(SELECT front.row FROM front))
         FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT array_agg(mine.row) FROM mine);
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_limited_rows_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_read_notes_a1ec3045(p_from timestamptz, p_now timestamptz, p_queues text[], p_room int, OUT keys bigint[],
    OUT queues text[], OUT rows tid[], OUT again_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
  v_over tid[];
  v_kept tid[];
  v_lanes bigint[];
  v_ready bool[];
  v_froms bigint[];
BEGIN
  WITH due AS MATERIALIZED (
    SELECT note.ctid AS row, note.lane_id, note.key_id, note.is_forced, note.position
      FROM dispatcher_note AS note
     WHERE note.at > p_from AND note.at <= p_now
     ORDER BY note.at
     LIMIT 100
       FOR UPDATE SKIP LOCKED
  ), mine AS MATERIALIZED (
    SELECT site.ctid AS row, site.lane_id, site.queue, site.priority, site.served_at, site.place, site.waits_from
      FROM dispatcher_lanesite AS site
     WHERE site.lane_id = ANY (ARRAY(SELECT due.lane_id FROM due WHERE due.lane_id IS NOT NULL))
       FOR NO KEY UPDATE SKIP LOCKED
  ), lane AS MATERIALIZED (
    SELECT mine.row, mine.lane_id, mine.queue, mine.priority, mine.served_at, noted.position, mine.waits_from,
           mine.place IS NULL
           OR (mine.place <> 0 AND (noted.is_forced OR noted.position < mine.waits_from)) AS is_ready,
           mine.place IS NULL AND noted.position >= mine.waits_from AND mine.queue = ANY (p_queues) AS may_be_served
      FROM mine
     CROSS JOIN LATERAL (
           SELECT min(due.position) AS position, bool_or(due.is_forced) AS is_forced
             FROM due
            WHERE due.lane_id = mine.lane_id) AS noted
  ), served AS MATERIALIZED (
    SELECT lane.row
      FROM lane
     WHERE lane.may_be_served
     ORDER BY lane.priority DESC, lane.served_at, lane.lane_id
     LIMIT p_room
  ), settled AS MATERIALIZED (
    SELECT due.row,
           due.lane_id IS NULL OR due.lane_id IN (SELECT mine.lane_id FROM mine)
           OR NOT EXISTS (SELECT FROM dispatcher_lanesite AS site WHERE site.lane_id = due.lane_id) AS is_over
      FROM due
  )
  SELECT ARRAY(SELECT DISTINCT due.key_id FROM due WHERE due.key_id IS NOT NULL),
         ARRAY(SELECT served.row FROM served), array_agg(lane.lane_id), array_agg(lane.is_ready),
         array_agg(LEAST(lane.waits_from, lane.position)),
         COALESCE(array_agg(DISTINCT lane.queue) FILTER (WHERE lane.is_ready), '{}'),
         ARRAY(SELECT settled.row FROM settled WHERE settled.is_over),
         ARRAY(SELECT settled.row FROM settled WHERE NOT settled.is_over),
         CASE (SELECT count(*) FROM due) WHEN 100 THEN p_now WHEN 0 THEN p_now + interval '20 milliseconds' END
    INTO keys, rows, v_lanes, v_ready, v_froms, queues, v_over, v_kept, again_at
    FROM lane
   WHERE (lane.is_ready OR lane.position < lane.waits_from) AND lane.row NOT IN (SELECT served.row FROM served);
  DELETE FROM dispatcher_note AS note WHERE note.ctid = ANY (v_over);
  IF v_kept <> '{}' THEN
    UPDATE dispatcher_note AS note SET at = p_now + interval '20 milliseconds' WHERE note.ctid = ANY (v_kept);
    again_at := COALESCE(again_at, p_now + interval '20 milliseconds');
  END IF;
  IF v_lanes IS NOT NULL THEN
    UPDATE dispatcher_lanesite AS site
       SET place = CASE WHEN lane.is_ready THEN 0 ELSE site.place END, waits_from = lane.waits_from,
           served_at = CASE WHEN lane.is_ready THEN COALESCE(site.last_served_at, site.served_at)
                            ELSE site.served_at END
      FROM unnest(v_lanes, v_ready, v_froms) AS lane (id, is_ready, waits_from)
     WHERE site.lane_id = ANY (v_lanes) AND site.lane_id = lane.id;
  END IF;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_read_notes_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_parked_queues_a1ec3045(p_key bigint) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    WITH RECURSIVE turn (queue) AS (
      SELECT min(site.queue) FROM dispatcher_lanesite AS site WHERE site.place = p_key
       UNION ALL
      SELECT (SELECT min(site.queue) FROM dispatcher_lanesite AS site
               WHERE site.place = p_key AND site.queue > turn.queue)
        FROM turn
       WHERE turn.queue IS NOT NULL
    )
    SELECT array_agg(turn.queue) FROM turn WHERE turn.queue IS NOT NULL);
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_parked_queues_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_groups_of_a1ec3045(p_name text) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT ARRAY(SELECT joined.id
                   FROM dispatcher_ratelimitkey AS joined
                  WHERE joined.is_group
                    AND joined.name = ANY (ARRAY(SELECT left(p_name, place) || '*'
                                                   FROM generate_series(1, length(p_name)) AS place))));
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_groups_of_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_hint_slots_a1ec3045(p_keys bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE dispatcher_ratelimitkey AS key
     SET slots_from = COALESCE((SELECT slot.id
                                  FROM dispatcher_slot AS slot
                                 WHERE slot.key_id = key.id AND slot.id >= key.slots_from
                                 ORDER BY slot.key_id, slot.id
                                 LIMIT 1), key.slots_from)
   WHERE key.id = ANY (p_keys);
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_hint_slots_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_members_of_a1ec3045(p_name text) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT ARRAY(SELECT member.id
                   FROM dispatcher_ratelimitkey AS member
                  WHERE member.name ~>=~ rtrim(p_name, '*') AND member.name ~<~ (rtrim(p_name, '*') || '~')
                    AND NOT member.is_group));
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_members_of_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_queues_a1ec3045() RETURNS TABLE (name text) LANGUAGE sql STABLE AS $$
WITH RECURSIVE hop (name) AS (
  SELECT min(lane.queue)::text FROM dispatcher_lane AS lane
   UNION ALL
  SELECT (SELECT min(lane.queue) FROM dispatcher_lane AS lane WHERE lane.queue > hop.name)::text
    FROM hop
   WHERE hop.name IS NOT NULL
)
SELECT hop.name FROM hop WHERE hop.name IS NOT NULL
 UNION
SELECT queue.name FROM dispatcher_queue AS queue
$$;
REVOKE EXECUTE ON FUNCTION dispatcher_queues_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_record_ends_a1ec3045(p_calls uuid[], p_tickets uuid[], p_claims uuid[], p_states text[], p_reasons text[],
    p_crashes smallint[], p_results jsonb[], p_errors jsonb[], p_waits interval[], p_now timestamptz,
    OUT ended uuid[], OUT locked uuid[], OUT freed bigint[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_slots bigint[];
BEGIN
  IF array_remove(p_errors, NULL) <> '{}' THEN
    p_errors := ARRAY(SELECT failure.error || jsonb_build_object('occurred_at', p_now)
                        FROM unnest(p_errors) WITH ORDINALITY AS failure (error, n)
                       ORDER BY failure.n);
  END IF;
  v_slots := ARRAY(SELECT slot.id FROM dispatcher_slot AS slot WHERE slot.call_id = ANY (p_calls)
                      FOR UPDATE SKIP LOCKED);
  WITH recorded AS (
    UPDATE dispatcher_callqueue AS call
       SET state = p_states[n], reason = p_reasons[n], ticket = NULL, claim = p_claims[n], result = p_results[n],
           returns = 0,
           crashes = COALESCE(p_crashes[n], call.crashes),
           scheduled_at = COALESCE(p_now + p_waits[n], call.scheduled_at),
           finished_at = CASE WHEN p_states[n] IN ('completed', 'cancelled', 'discarded') THEN p_now END,
           error = p_errors[n],
           errors = CASE WHEN p_errors[n] IS NULL THEN call.errors ELSE dispatcher_add_error_a1ec3045(call.errors, p_errors[n]) END,
           error_count = CASE WHEN p_errors[n] IS NULL THEN call.error_count
                              ELSE GREATEST(call.error_count, jsonb_array_length(call.errors)) + 1 END
      FROM generate_subscripts(p_calls, 1) AS n
     WHERE call.id = ANY (ARRAY(SELECT mine.id FROM dispatcher_callqueue AS mine
                                 WHERE mine.id = ANY (p_calls) FOR NO KEY UPDATE SKIP LOCKED))
       AND call.id = p_calls[n] AND call.ticket = p_tickets[n] AND COALESCE(call.state, '') = 'active'
       AND (p_claims[n] IS NULL OR call.claim = p_claims[n])
       AND call.id <> ALL (ARRAY(SELECT slot.call_id FROM dispatcher_slot AS slot
                                  WHERE slot.call_id = ANY (p_calls) AND slot.id <> ALL (v_slots)))
    RETURNING call.id
  ), gone AS (
    DELETE FROM dispatcher_slot AS slot
     WHERE slot.call_id = ANY (ARRAY(SELECT recorded.id FROM recorded))
    RETURNING slot.key_id)
  SELECT ARRAY(SELECT recorded.id FROM recorded),
         ARRAY(SELECT DISTINCT gone.key_id FROM gone WHERE gone.key_id IS NOT NULL)
    INTO ended, freed;
  IF 'available' = ANY (p_states) THEN
    INSERT INTO dispatcher_note (at, lane_id, is_forced, position)
    SELECT p_now, call.lane_id, true, min(call.position)
      FROM dispatcher_callqueue AS call
     WHERE call.id = ANY (ended) AND call.state = 'available'
     GROUP BY call.lane_id;
  END IF;
  IF cardinality(ended) < cardinality(p_calls) THEN
    locked := ARRAY(SELECT call.id
                      FROM unnest(p_calls, p_tickets, p_claims) AS ending (id, ticket, claim)
                      JOIN dispatcher_callqueue AS call
                        ON call.id = ending.id AND call.ticket = ending.ticket AND COALESCE(call.state, '') = 'active'
                       AND (ending.claim IS NULL OR call.claim = ending.claim));
  END IF;
  locked := COALESCE(locked, '{}');
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_record_ends_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_paced_a1ec3045(p_next timestamptz, p_cost bigint, p_limit int, p_period interval, p_now timestamptz,
    p_lead interval) RETURNS timestamptz LANGUAGE sql STABLE AS $$
SELECT CASE WHEN p_limit IS NOT NULL
             AND (p_next > p_now + interval '0.1 milliseconds'
                  OR dispatcher_spacing_a1ec3045(p_cost, p_limit, p_period) >= interval '0.1 milliseconds')
            THEN GREATEST(p_next, p_now + p_lead) END
$$;
REVOKE EXECUTE ON FUNCTION dispatcher_paced_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_queue_room_a1ec3045(p_queue text, p_want int, p_tuning dispatcher_tuning_a1ec3045, p_now timestamptz) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
  v_room int;
BEGIN
  IF p_want <= 0
     OR (p_tuning.needs_worker AND NOT EXISTS (
           SELECT FROM dispatcher_worker AS worker
            WHERE p_queue = ANY (worker.queues) AND worker.serves_until > p_now)) THEN
    RETURN 0;
  END IF;
  FOR v_try IN 1 .. 2 LOOP
    v_room := p_tuning.ahead - (
      SELECT count(*) FROM (
        SELECT FROM dispatcher_callqueue AS call
         WHERE call.queue = p_queue AND call.state IN ('dispatched', 'active') AND call.state >= 'dispatched'
         LIMIT p_tuning.ahead) AS call);
    IF v_room < LEAST(p_want, p_tuning.ahead / 100) THEN RETURN 0; END IF;
    EXIT WHEN v_try = 2 OR v_room >= 32 * p_want;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('dispatcher.queue.' || p_queue, 0)) THEN RETURN NULL; END IF;
  END LOOP;
  RETURN LEAST(p_want, v_room);
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_queue_room_a1ec3045 FROM PUBLIC;

CREATE TYPE dispatcher_line_a1ec3045 AS (key_id bigint, priority smallint, share_id bigint, weight int, next bigint, was bigint);

CREATE TYPE dispatcher_seat_a1ec3045 AS (
    line int,
    clock int,
    cost_at int,
    heads int,
    turn bigint,
    length bigint,
    first bigint,
    served_at timestamptz,
    waits_from bigint
);

CREATE FUNCTION dispatcher_shares_a1ec3045(p_lanes dispatcher_lane_a1ec3045[], p_ids bigint[], p_room int, OUT lanes bigint[], OUT seats dispatcher_seat_a1ec3045[],
    OUT lines dispatcher_line_a1ec3045[]) LANGUAGE plpgsql STABLE AS $$
BEGIN
  WITH key AS MATERIALIZED (
    SELECT key.id, key.name, key.fair_by, key.weight
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT unnest(lane.key_ids) FROM unnest(p_lanes) AS lane))
  ), mine AS MATERIALIZED (
    SELECT lane.id, lane.priority, lane.served_at, lane.waits_from, fair.id AS key_id,
           COALESCE(share.id, 0) AS share_id, COALESCE(share.weight, 1) AS weight,
           array_position(lane.key_ids, fair.id) AS cost_at,
           CASE WHEN lane.place = fair.id AND lane.last_served_at IS NOT NULL
                THEN (extract(epoch FROM lane.served_at) * 1000000)::bigint END AS turn,
           CASE WHEN lane.last_served_at IS NOT NULL
                THEN dispatcher_turn_a1ec3045(COALESCE((SELECT call.key_costs[array_position(lane.key_ids, fair.id)]
                                       FROM dispatcher_callqueue AS call
                                      WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
                                        AND call.state = 'available' AND call.oversized_key_id IS NULL
                                      ORDER BY call.position
                                      LIMIT 1), 1), COALESCE(share.weight, 1)) END AS length
      FROM unnest(p_lanes) AS lane
     CROSS JOIN LATERAL (
           SELECT key.id, key.fair_by
             FROM key
            WHERE key.id = ANY (lane.key_ids) AND key.fair_by IS NOT NULL
            ORDER BY key.name COLLATE "C"
            LIMIT 1) AS fair
      LEFT JOIN LATERAL (
           SELECT key.id, key.weight
             FROM key
            WHERE key.id = ANY (lane.key_ids) AND key.id <> fair.id
              AND starts_with(key.name, rtrim(fair.fair_by, '*'))
            ORDER BY key.name COLLATE "C"
            LIMIT 1) AS share ON true
     WHERE fair.id = ANY (p_ids) AND lane.on_limit = 'wait'
  ), line AS MATERIALIZED (
    SELECT one.key_id, one.priority, one.share_id, one.weight, one.lanes,
           COALESCE(clock.next, 7258118400000000) AS clock,
           GREATEST(COALESCE(clock.next, 7258118400000000)
                    - CASE WHEN one.is_in_line AND stored.next IS NOT NULL THEN dispatcher_turn_a1ec3045(100, 1) ELSE 0 END,
                    stored.next - one.paid) AS next,
           row_number() OVER (ORDER BY one.key_id, one.priority, one.share_id) AS n
      FROM (SELECT mine.key_id, mine.priority, mine.share_id, mine.weight, count(*) AS lanes,
                   COALESCE(sum(mine.length) FILTER (WHERE mine.turn IS NULL), 0)::bigint AS paid,
                   bool_or(mine.turn IS NOT NULL) AS is_in_line
              FROM mine
             GROUP BY mine.key_id, mine.priority, mine.share_id, mine.weight
             UNION ALL
            SELECT DISTINCT mine.key_id, mine.priority, -1, 0, 0, 0, false FROM mine) AS one
      LEFT JOIN LATERAL (
           SELECT share.next FROM dispatcher_share AS share
            WHERE share.key_id = one.key_id AND share.priority = one.priority AND share.share_id = one.share_id
            LIMIT 1) AS stored ON true
      LEFT JOIN LATERAL (
           SELECT share.next FROM dispatcher_share AS share
            WHERE share.key_id = one.key_id AND share.priority = one.priority AND share.share_id = -1
            LIMIT 1) AS clock ON true
  )
  SELECT (SELECT array_agg((line.key_id, line.priority, line.share_id, line.weight, line.next, line.next)::dispatcher_line_a1ec3045
                           ORDER BY line.n) FROM line),
         array_agg(seat.id),
         array_agg((seat.line, seat.clock, seat.cost_at, seat.heads, seat.turn, seat.length, seat.first,
                    seat.served_at, seat.waits_from)::dispatcher_seat_a1ec3045)
    INTO lines, lanes, seats
    FROM (SELECT mine.id, line.n AS line, clock.n AS clock, mine.cost_at, mine.turn, mine.served_at,
                 mine.waits_from,
                 CASE WHEN mine.turn IS NOT NULL THEN mine.length END AS length,
                 ceil(p_room * line.weight::float8 / (sum(line.weight::float8 / line.lanes) OVER rivals)
                      / line.lanes)::int + 1 AS heads,
                 min(COALESCE(mine.turn, line.next - 1)) OVER rivals AS first
            FROM mine
            JOIN line ON line.key_id = mine.key_id AND line.priority = mine.priority AND line.share_id = mine.share_id
            JOIN line AS clock
              ON clock.key_id = mine.key_id AND clock.priority = mine.priority AND clock.share_id = -1
          WINDOW rivals AS (PARTITION BY mine.key_id, mine.priority)) AS seat;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_shares_a1ec3045 FROM PUBLIC;

CREATE TYPE dispatcher_observed_a1ec3045 AS (
    concurrency int,
    rate_limit int,
    rate_period interval,
    throttle_limit int,
    throttle_period interval,
    delayed bigint,
    longest interval,
    allowed_at timestamptz
);

CREATE TYPE dispatcher_key_room_a1ec3045 AS (
    id bigint,
    room bigint,
    own bigint,
    fits bigint,
    next_at timestamptz,
    throttle_limit int,
    throttle_period interval,
    rate_limit int,
    rate_period interval,
    unstarted bigint,
    held bigint,
    closed_until timestamptz,
    ramp_from timestamptz,
    is_group bool,
    is_counted bool,
    total bigint,
    last_at timestamptz,
    last_cost int,
    used bigint,
    name text,
    concurrency int,
    per_worker int,
    fair_by text,
    spent bigint,
    spent_from timestamptz,
    observed dispatcher_observed_a1ec3045
);

CREATE FUNCTION dispatcher_room_a1ec3045(p_keys bigint[], p_worker uuid, p_now timestamptz, p_margin interval, p_ramp interval)
RETURNS SETOF dispatcher_key_room_a1ec3045 LANGUAGE sql STABLE AS $$
SELECT key.id,
       GREATEST(0, CASE WHEN key.is_paused OR key.blocked_until > p_now THEN 0
                        ELSE LEAST(force.concurrency - slots.held,
                                   force.rate_limit - slots.unstarted
                                   - counted.spent,
                                   (1 << ramp.step) - slots.held,
                                   2147483647) END),
       CASE WHEN force.per_worker IS NULL THEN 2147483647
            WHEN p_worker IS NULL THEN 0
            ELSE force.per_worker - slots.mine END,
       LEAST(NULLIF(force.concurrency, 0), force.per_worker, force.rate_limit, 2147483647,
             CASE WHEN force.throttle_limit IS NOT NULL
                  THEN floor(366 * 86400.0 * force.throttle_limit / extract(epoch FROM force.throttle_period))
             END)::bigint,
       CASE WHEN force.throttle_limit IS NOT NULL
            THEN GREATEST(p_now, last.at
                                 + dispatcher_spacing_a1ec3045(last.last_cost, force.throttle_limit, force.throttle_period))
                 + dispatcher_spacing_a1ec3045(slots.unstarted, force.throttle_limit, force.throttle_period) END,
       force.throttle_limit, force.throttle_period, force.rate_limit, force.rate_period, slots.unstarted, slots.held,
       CASE WHEN key.is_paused THEN 'infinity' WHEN key.blocked_until > p_now THEN key.blocked_until END,
       CASE WHEN key.blocked_until + p_ramp > p_now THEN key.blocked_until END,
       key.is_group,
       key.is_observed
         OR dispatcher_counts_a1ec3045(key.rate_limit, key.override_rate_limit, key.throttle_limit, key.override_throttle_limit),
       last.total, last.at, last.last_cost, 0::bigint,
       key.name::text, force.concurrency, force.per_worker, key.fair_by::text, counted.spent, first.at,
       CASE WHEN key.is_observed
            THEN (given.concurrency, given.rate_limit, given.rate_period, given.throttle_limit, given.throttle_period,
                  CASE WHEN last.at > key.limited_at THEN COALESCE(last.delayed, 0) ELSE 0 END,
                  CASE WHEN last.at > key.limited_at THEN last.longest END,
                  CASE WHEN last.at > key.limited_at THEN last.allowed_at END)::dispatcher_observed_a1ec3045 END
  FROM dispatcher_ratelimitkey AS key
 CROSS JOIN LATERAL (SELECT COALESCE(key.override_until > p_now, false) AS is_on) AS override
 CROSS JOIN LATERAL (
       SELECT CASE WHEN override.is_on THEN key.override_concurrency ELSE key.concurrency END AS concurrency,
              CASE WHEN override.is_on THEN key.override_per_worker ELSE key.per_worker END AS per_worker,
              CASE WHEN override.is_on THEN key.override_rate_limit ELSE key.rate_limit END AS rate_limit,
              CASE WHEN override.is_on THEN key.override_rate_period ELSE key.rate_period END AS rate_period,
              CASE WHEN override.is_on THEN key.override_throttle_limit ELSE key.throttle_limit END AS throttle_limit,
              CASE WHEN override.is_on THEN key.override_throttle_period ELSE key.throttle_period END
                  AS throttle_period
        OFFSET 0) AS given
 CROSS JOIN LATERAL (
       SELECT CASE WHEN NOT key.is_observed THEN given.concurrency END AS concurrency,
              CASE WHEN NOT key.is_observed THEN given.per_worker END AS per_worker,
              CASE WHEN NOT key.is_observed THEN given.rate_limit END AS rate_limit,
              CASE WHEN NOT key.is_observed THEN given.rate_period END AS rate_period,
              CASE WHEN NOT key.is_observed THEN given.throttle_limit END AS throttle_limit,
              CASE WHEN NOT key.is_observed THEN given.throttle_period END AS throttle_period) AS force
 CROSS JOIN LATERAL (
       SELECT CASE WHEN key.blocked_until <= p_now AND p_now < key.blocked_until + p_ramp
                   THEN floor(8 * extract(epoch FROM p_now - key.blocked_until) / extract(epoch FROM p_ramp))::int
              END AS step) AS ramp
 CROSS JOIN LATERAL (
       SELECT COALESCE(sum(slot.cost), 0) AS held,
              COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0) AS unstarted,
              COALESCE(sum(slot.cost) FILTER (WHERE slot.worker_id = p_worker), 0) AS mine
         FROM dispatcher_slot AS slot
        WHERE slot.key_id = key.id AND slot.id >= key.slots_from) AS slots
  LEFT JOIN LATERAL (
       SELECT start.total, start.at, start.last_cost, start.delayed, start.longest, start.allowed_at
         FROM dispatcher_start AS start
        WHERE start.key_id = key.id
        ORDER BY start.key_id DESC, start.at DESC, start.total DESC
        LIMIT 1) AS last ON true
  LEFT JOIN LATERAL (
       SELECT start.total, start.cost, start.at
         FROM dispatcher_start AS start
        WHERE start.key_id = key.id AND start.at > p_now - given.rate_period - p_margin
        ORDER BY start.key_id, start.at, start.total
        LIMIT 1) AS first ON true
 CROSS JOIN LATERAL (
       SELECT COALESCE(last.total - first.total + first.cost, 0) AS spent) AS counted
 WHERE key.id = ANY (p_keys)
$$;
REVOKE EXECUTE ON FUNCTION dispatcher_room_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_free_lanes_a1ec3045(p_key bigint, p_room bigint, p_not bigint[], OUT queues text[], OUT is_short bool)
LANGUAGE plpgsql AS $$
DECLARE
  v_parked text[] := dispatcher_parked_queues_a1ec3045(p_key);
BEGIN
  WITH freed AS (
    UPDATE dispatcher_lanesite AS site
       SET place = 0, kept_until = NULL, served_at = COALESCE(site.last_served_at, site.served_at)
     WHERE site.ctid = ANY (ARRAY(
             SELECT front.row
               FROM unnest(v_parked) AS turn (queue)
              CROSS JOIN LATERAL (
                    SELECT site.ctid AS row
                      FROM dispatcher_lanesite AS site
                     WHERE site.place = p_key AND site.queue = turn.queue AND site.lane_id <> ALL (p_not)
                     ORDER BY site.priority DESC, site.served_at, site.lane_id
                     LIMIT LEAST(p_room, 20)
                       FOR NO KEY UPDATE SKIP LOCKED) AS front))
    RETURNING site.queue
  )
  SELECT COALESCE(array_agg(freed.queue), '{}') INTO queues FROM freed;
  is_short := EXISTS (
    SELECT FROM unnest(v_parked) AS turn (queue)
     WHERE cardinality(array_positions(queues, turn.queue)) < LEAST(p_room, 20)
       AND (SELECT site.lane_id FROM dispatcher_lanesite AS site
             WHERE site.place = p_key AND site.queue = turn.queue AND site.lane_id <> ALL (p_not) LIMIT 1) IS NOT NULL);
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_free_lanes_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_show_lanes_a1ec3045(p_key bigint, p_now timestamptz, OUT queues text[], OUT is_short bool)
LANGUAGE plpgsql AS $$
BEGIN
  queues := dispatcher_parked_queues_a1ec3045(p_key);
  UPDATE dispatcher_lanesite AS site
     SET kept_until = p_now
   WHERE site.kept_until IS NULL
     AND site.ctid = ANY (ARRAY(
           SELECT front.row
             FROM unnest(queues) AS queue (name)
            CROSS JOIN LATERAL (
                  SELECT site.ctid AS row
                    FROM dispatcher_lanesite AS site
                   WHERE site.place = p_key AND site.queue = queue.name
                   ORDER BY site.priority DESC, site.served_at, site.lane_id
                   LIMIT 1
                     FOR NO KEY UPDATE SKIP LOCKED) AS front));
  is_short := EXISTS (
    SELECT FROM unnest(queues) AS queue (name)
     WHERE NOT EXISTS (SELECT FROM dispatcher_lanesite AS site
                        WHERE site.queue = queue.name AND site.kept_until IS NOT NULL AND site.place = p_key));
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_show_lanes_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_is_member_a1ec3045(p_name text, p_is_group bool) RETURNS bool LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT NOT p_is_group
           AND (SELECT key.id FROM dispatcher_ratelimitkey AS key
                 WHERE key.is_group ORDER BY key.name LIMIT 1) IS NOT NULL
           AND dispatcher_groups_of_a1ec3045(p_name) <> '{}');
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_is_member_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_pay_a1ec3045(p_lines dispatcher_line_a1ec3045[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_line dispatcher_line_a1ec3045;
BEGIN
  FOREACH v_line IN ARRAY p_lines LOOP
    UPDATE dispatcher_share AS share
       SET next = v_line.next
     WHERE share.key_id = v_line.key_id AND share.priority = v_line.priority AND share.share_id = v_line.share_id
       AND (SELECT true FROM dispatcher_share AS mine
             WHERE mine.key_id = v_line.key_id AND mine.priority = v_line.priority
               AND mine.share_id = v_line.share_id
               FOR NO KEY UPDATE SKIP LOCKED);
    IF NOT FOUND THEN
      INSERT INTO dispatcher_share (key_id, priority, share_id, next)
      SELECT v_line.key_id, v_line.priority, v_line.share_id, v_line.next
       WHERE NOT EXISTS (
             SELECT FROM dispatcher_share AS mine
              WHERE mine.key_id = v_line.key_id AND mine.priority = v_line.priority
                AND mine.share_id = v_line.share_id);
    END IF;
  END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_pay_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_rounds_a1ec3045(p_lanes bigint[], p_seats dispatcher_seat_a1ec3045[], p_lines dispatcher_line_a1ec3045[], p_met bigint[], p_done bigint[],
    p_over uuid[], p_one_by_one bool, OUT calls uuid[], OUT rounds bigint[]) LANGUAGE plpgsql STABLE AS $$
BEGIN
  WITH head AS (
    SELECT lane.id AS lane, lane.line, lane.turn, lane.first, lane.served_at, call.id, met.n + call.n AS n,
           lane.turn IS NOT NULL AND call.n = 1 AS is_in_line, (lane.length IS NULL)::int AS is_new, line.next,
           dispatcher_turn_a1ec3045(COALESCE(call.key_costs[lane.cost_at], 1), line.weight) AS length
      FROM (SELECT seated.id, (p_seats[seated.n]).* FROM unnest(p_lanes) WITH ORDINALITY AS seated (id, n)) AS lane
     CROSS JOIN LATERAL (SELECT (p_lines[lane.line]).next, (p_lines[lane.line]).weight) AS line
     CROSS JOIN LATERAL (SELECT cardinality(array_positions(p_met, lane.id)) AS n) AS met
     CROSS JOIN LATERAL (
           SELECT call.id, call.key_costs, row_number() OVER () AS n
             FROM (SELECT call.id, call.key_costs
                     FROM dispatcher_callqueue AS call
                    WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
                      AND call.state = 'available' AND call.oversized_key_id IS NULL AND call.id <> ALL (p_over)
                    ORDER BY call.position
                    LIMIT lane.heads) AS call) AS call
     WHERE lane.id <> ALL (p_done))
  SELECT array_agg(turn.id), array_agg(turn.at - turn.first + dispatcher_turn_a1ec3045(1, 1))
    INTO calls, rounds
    FROM (SELECT each.id, each.first, max(each.at) OVER (PARTITION BY each.lane ORDER BY each.n) AS at
            FROM (SELECT head.id, head.first, head.lane, head.n,
                         CASE WHEN head.is_in_line THEN head.turn
                              ELSE head.next - head.is_new - head.length + sum(head.length) OVER (
                                     PARTITION BY head.line, head.is_in_line, CASE WHEN p_one_by_one THEN head.lane END
                                         ORDER BY head.n, head.served_at, head.lane) END::bigint AS at
                    FROM head) AS each) AS turn;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_rounds_a1ec3045 FROM PUBLIC;

CREATE TYPE dispatcher_start_a1ec3045 AS (
    call uuid,
    at timestamptz,
    state text,
    chosen jsonb,
    key_ids bigint[],
    costs int[],
    is_counted bool
);

CREATE TYPE dispatcher_fate_a1ec3045 AS (call uuid, fate text, at timestamptz, key_id bigint, cost int, queue text);

CREATE TYPE dispatcher_move_a1ec3045 AS (lane bigint, place bigint, served_at timestamptz, kept_until timestamptz, stopped uuid,
    is_turn bool,
    queue text
);

CREATE TYPE dispatcher_pending_a1ec3045 AS (at timestamptz, lane_id bigint, key_id bigint);

CREATE TYPE dispatcher_chosen_a1ec3045 AS (
    starts dispatcher_start_a1ec3045[],
    fates dispatcher_fate_a1ec3045[],
    served bigint[],
    moves dispatcher_move_a1ec3045[],
    notes dispatcher_pending_a1ec3045[],
    wake uuid[],
    keys dispatcher_key_room_a1ec3045[],
    counts bool,
    counted dispatcher_key_room_a1ec3045[],
    open bigint[],
    room_left int,
    publish_left int[],
    lines dispatcher_line_a1ec3045[]
);

CREATE FUNCTION dispatcher_count_starts_a1ec3045(p_keys dispatcher_key_room_a1ec3045[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO dispatcher_start (key_id, at, total, cost, last_cost, delayed, longest, allowed_at)
  SELECT key.id, key.last_at, COALESCE(key.total, 0) + key.used, key.used, key.last_cost,
         (key.observed).delayed, (key.observed).longest, (key.observed).allowed_at
    FROM unnest(p_keys) AS key
   WHERE key.used > 0 AND key.is_counted;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_count_starts_a1ec3045 FROM PUBLIC;

CREATE TYPE dispatcher_group_room_a1ec3045 AS (id bigint, room bigint, fits bigint, best bigint[]);

CREATE FUNCTION dispatcher_lock_keys_a1ec3045(p_keys bigint[], p_known bigint[], p_worker uuid, p_most int, p_tuning dispatcher_tuning_a1ec3045,
    p_now timestamptz, OUT ids bigint[], OUT keys dispatcher_key_room_a1ec3045[], OUT groups bigint[], OUT busy bigint[],
    OUT is_parked bool)
LANGUAGE plpgsql AS $$
DECLARE
  v_groups dispatcher_group_room_a1ec3045[];
  v_members bigint[];
  v_group dispatcher_group_room_a1ec3045;
  v_has_groups bool;
  v_has_blocks bool;
  k int;
BEGIN
  SELECT ARRAY(SELECT key.id
                 FROM dispatcher_ratelimitkey AS key
                WHERE key.id = ANY (p_keys) AND key.id <> ALL (p_known)
                ORDER BY key.id
                  FOR NO KEY UPDATE SKIP LOCKED),
         (SELECT key.id FROM dispatcher_ratelimitkey AS key WHERE key.is_group ORDER BY key.name LIMIT 1) IS NOT NULL
    INTO ids, v_has_groups;
  IF v_has_groups THEN
    SELECT array_agg(DISTINCT joined.id), array_agg(key.id) FILTER (WHERE NOT key.is_group) INTO groups, v_members
      FROM dispatcher_ratelimitkey AS key
     CROSS JOIN LATERAL unnest(CASE WHEN key.is_group THEN ARRAY[key.id] ELSE dispatcher_groups_of_a1ec3045(key.name) END) AS joined (id)
     WHERE key.id = ANY (ids);
  END IF;
  groups := COALESCE(groups, '{}');
  IF groups <> '{}' THEN
    SELECT array_agg((key.id, ranked.room, ranked.fits, ranked.best)::dispatcher_group_room_a1ec3045) INTO v_groups
      FROM dispatcher_ratelimitkey AS key
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(member.room) FILTER (WHERE member.is_open), 0) AS room, max(member.fits) AS fits,
                  (array_agg(member.id ORDER BY member.is_open AND member.own > 0 DESC, member.is_open DESC,
                             member.room DESC, member.last_at NULLS FIRST, member.id))[:p_most + 1] AS best
             FROM (SELECT member.id, member.room, member.fits, member.own, member.last_at,
                          member.room > 0 AND COALESCE(member.next_at <= p_now + p_tuning.horizon, true) AS is_open
                     FROM dispatcher_room_a1ec3045(dispatcher_members_of_a1ec3045(key.name), p_worker, p_now, p_tuning.margin, p_tuning.ramp) AS member)
                  AS member) AS ranked
     WHERE key.id = ANY (groups) AND key.id <> ALL (p_known);
    WITH mine AS (
      SELECT key.id
        FROM dispatcher_ratelimitkey AS key
       WHERE key.id = ANY (ARRAY(SELECT unnest(ranked.best || ranked.id) FROM unnest(v_groups) AS ranked))
         AND key.id <> ALL (ids || p_known)
       ORDER BY key.id
         FOR NO KEY UPDATE SKIP LOCKED)
    SELECT ids || ARRAY(SELECT mine.id FROM mine) INTO ids;
  END IF;
  busy := '{}';
  IF NOT (p_keys || groups) <@ (ids || p_known) THEN
    busy := ARRAY(SELECT key.id FROM dispatcher_ratelimitkey AS key
                   WHERE key.id = ANY (p_keys || groups) AND key.id <> ALL (ids || p_known));
  END IF;
  FOR v_count IN 1 .. 2 LOOP
    SELECT ARRAY(SELECT key FROM dispatcher_room_a1ec3045(ids, p_worker, p_now, p_tuning.margin, p_tuning.ramp) AS key),
           (SELECT site.lane_id FROM dispatcher_lanesite AS site WHERE site.place = ANY (ids) LIMIT 1) IS NOT NULL,
           EXISTS (SELECT FROM dispatcher_block)
      INTO keys, is_parked, v_has_blocks;
    EXIT WHEN v_count = 2 OR NOT v_has_blocks;
    WITH mine AS MATERIALIZED (
      SELECT block.ctid AS row FROM dispatcher_block AS block WHERE block.key_id = ANY (ids) FOR UPDATE SKIP LOCKED
    ), gone AS (
      DELETE FROM dispatcher_block AS block WHERE block.ctid = ANY (ARRAY(SELECT mine.row FROM mine)))
    UPDATE dispatcher_ratelimitkey AS key
       SET blocked_until = GREATEST(key.blocked_until, block.until)
      FROM (SELECT each.key_id, max(each.until) AS until FROM dispatcher_block AS each
             WHERE each.key_id = ANY (ids) GROUP BY each.key_id) AS block
     WHERE key.id = ANY (ids) AND key.id = block.key_id;
  END LOOP;
  ids := '{}';
  FOR k IN 1 .. cardinality(keys) LOOP
    ids := ids || keys[k].id;
  END LOOP;
  FOREACH v_group IN ARRAY COALESCE(v_groups, '{}') LOOP
    v_members := v_members || v_group.best;
    k := array_position(ids, v_group.id);
    CONTINUE WHEN k IS NULL;
    keys[k].room := LEAST(keys[k].room, v_group.room);
    keys[k].fits := LEAST(keys[k].fits, v_group.fits);
    IF NOT v_group.best <@ (ids || p_known) THEN busy := busy || v_group.id; END IF;
  END LOOP;
  FOR k IN 1 .. CASE WHEN v_members IS NULL THEN 0 ELSE cardinality(ids) END LOOP
    IF ids[k] = ANY (v_members) THEN keys[k].is_counted := true; END IF;
  END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_lock_keys_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_observe_a1ec3045(p_key dispatcher_key_room_a1ec3045, p_cost int, p_now timestamptz, p_tuning dispatcher_tuning_a1ec3045) RETURNS dispatcher_key_room_a1ec3045
LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_seen dispatcher_observed_a1ec3045 := p_key.observed;
  v_at timestamptz := GREATEST(p_now, v_seen.allowed_at,
    CASE WHEN v_seen.throttle_limit IS NOT NULL
         THEN v_seen.allowed_at + dispatcher_spacing_a1ec3045(p_key.last_cost, v_seen.throttle_limit, v_seen.throttle_period) END);
BEGIN
  p_key.spent := p_key.spent + p_cost;
  IF p_key.spent > v_seen.rate_limit THEN
    v_at := GREATEST(v_at, COALESCE(p_key.spent_from, p_now) + v_seen.rate_period + p_tuning.margin,
      CASE WHEN v_seen.allowed_at > p_now
           THEN v_seen.allowed_at + dispatcher_spacing_a1ec3045(p_key.last_cost, v_seen.rate_limit, v_seen.rate_period) END);
  END IF;
  v_seen.allowed_at := LEAST(v_at, p_now + interval '366 days');
  IF v_at > p_now + p_tuning.horizon THEN
    v_seen.longest := GREATEST(v_seen.longest, v_seen.allowed_at - p_now);
  END IF;
  IF v_at > p_now + p_tuning.horizon OR p_key.held - p_key.unstarted > v_seen.concurrency THEN
    v_seen.delayed := v_seen.delayed + 1;
  END IF;
  p_key.observed := v_seen;
  RETURN p_key;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_observe_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_opening_a1ec3045(p_key dispatcher_key_room_a1ec3045, p_cost bigint, p_horizon interval, p_margin interval, p_ramp interval,
    p_now timestamptz) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_at timestamptz := p_now;
  v_need bigint;
  v_gone bigint;
BEGIN
  IF p_key.closed_until = 'infinity' OR p_key.concurrency < p_key.held + p_cost THEN
    RETURN NULL;
  END IF;
  v_at := GREATEST(v_at, p_key.closed_until);
  IF p_key.ramp_from IS NOT NULL AND p_key.held + p_cost > 1 THEN
    v_at := GREATEST(v_at, p_key.ramp_from
      + interval '1 microsecond' * ceil(extract(epoch FROM p_ramp) * 1e6 / 8 * COALESCE(
          (SELECT min(step) FROM generate_series(0, 7) AS step WHERE (1 << step) >= p_key.held + p_cost), 8))::float8);
  END IF;
  IF p_key.rate_limit IS NOT NULL THEN
    v_need := COALESCE(p_key.total, 0) + p_key.used + p_key.unstarted + p_cost - p_key.rate_limit;
    SELECT start.total - start.cost INTO v_gone
      FROM dispatcher_start AS start
     WHERE start.key_id = p_key.id AND start.at > p_now - p_key.rate_period - p_margin
     ORDER BY start.key_id, start.at, start.total
     LIMIT 1;
    IF v_gone IS NULL THEN
      v_gone := COALESCE((SELECT max(start.total) FROM dispatcher_start AS start WHERE start.key_id = p_key.id), 0);
    END IF;
    IF v_need > v_gone THEN
      v_at := GREATEST(v_at, p_key.rate_period + p_margin + COALESCE(
        (SELECT start.at
           FROM dispatcher_start AS start
          WHERE start.key_id = p_key.id AND start.at > p_now - p_key.rate_period - p_margin AND start.total >= v_need
          ORDER BY start.key_id, start.at, start.total
          LIMIT 1),
        CASE WHEN v_need <= COALESCE(p_key.total, 0) + p_key.used THEN p_key.last_at END,
        p_now));
    END IF;
  END IF;
  v_at := GREATEST(v_at, p_key.next_at - p_horizon);
  RETURN NULLIF(v_at, p_now);
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_opening_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_room_now_a1ec3045(p_key dispatcher_key_room_a1ec3045, p_horizon interval, p_now timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN p_key.next_at IS NULL THEN p_key.room
            WHEN p_key.next_at > p_now + p_horizon THEN 0
            ELSE LEAST(p_key.room,
                       1 + floor(extract(epoch FROM p_now + p_horizon - p_key.next_at) * p_key.throttle_limit
                                 / extract(epoch FROM p_key.throttle_period)))::bigint END
$$;
REVOKE EXECUTE ON FUNCTION dispatcher_room_now_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_wake_a1ec3045(p_queue text, p_key bigint, p_not uuid, p_silence interval, p_now timestamptz) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
  v_process uuid;
BEGIN
  IF NOT EXISTS (SELECT FROM dispatcher_process AS idle
                  WHERE idle.idle_at IS NOT NULL AND p_queue = ANY (idle.queues)) THEN
    RETURN NULL;
  END IF;
  UPDATE dispatcher_process AS process
     SET idle_at = NULL
   WHERE process.id = (
           SELECT idle.id
             FROM dispatcher_process AS idle
             LEFT JOIN dispatcher_worker AS worker ON worker.id = idle.worker_id
            WHERE idle.idle_at IS NOT NULL AND p_queue = ANY (idle.queues) AND idle.id IS DISTINCT FROM p_not
              AND (idle.worker_id IS NULL OR NOT pg_try_advisory_xact_lock_shared(hashtextextended(idle.id::text, 0)))
              AND worker.stopped_at IS NULL AND worker.lost_at IS NULL
              AND COALESCE(worker.seen_at, idle.idle_at) > p_now - p_silence
              AND (p_key IS NULL
                   OR COALESCE((SELECT key.own > 0 FROM dispatcher_room_a1ec3045(ARRAY[p_key], idle.worker_id, p_now, '0', '0') AS key),
                               true))
            ORDER BY idle.idle_at, idle.id
            LIMIT 1
              FOR NO KEY UPDATE OF idle SKIP LOCKED)
  RETURNING process.id INTO v_process;
  RETURN v_process;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_wake_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_settle_a1ec3045(p_fates dispatcher_fate_a1ec3045[], p_tuning dispatcher_tuning_a1ec3045, p_now timestamptz)
RETURNS TABLE (id uuid, state text, task text, queue text, attempt int, fate text, key text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  UPDATE dispatcher_callqueue AS call
     SET state = CASE fate.fate WHEN 'oversized' THEN 'available' WHEN 'later' THEN 'scheduled'
                                WHEN 'unknown' THEN 'scheduled' WHEN 'cancelled' THEN 'cancelled' ELSE 'discarded' END,
         reason = CASE fate.fate WHEN 'dropped' THEN 'limit' WHEN 'expired' THEN 'expired' END,
         oversized_key_id = CASE WHEN fate.fate = 'oversized' THEN fate.key_id END,
         oversized_cost = CASE WHEN fate.fate = 'oversized' THEN fate.cost END,
         scheduled_at = CASE fate.fate WHEN 'later' THEN fate.at WHEN 'unknown' THEN p_now + fate.wait
                                       ELSE call.scheduled_at END,
         returns = CASE WHEN fate.fate = 'unknown' THEN LEAST(call.returns + 1, 32767) ELSE call.returns END,
         finished_at = CASE WHEN fate.fate IN ('dropped', 'expired', 'cancelled') THEN p_now END,
         error = CASE fate.fate
                 WHEN 'dropped'
                 THEN jsonb_build_object('type', 'LimitReached', 'message', 'dropped at the limit of ' || fate.key,
                                         'attempt', call.attempt, 'key', fate.key, 'occurred_at', p_now)
                 WHEN 'expired'
                 THEN jsonb_build_object('type', 'Expired', 'message', 'not started by ' || call.expires_at,
                                         'attempt', call.attempt, 'occurred_at', p_now)
                 ELSE call.error END
    FROM (SELECT fate.call, fate.fate, fate.at, fate.key_id, fate.cost, key.name AS key,
                 CASE WHEN fate.fate = 'unknown'
                      THEN CASE WHEN known.is_known
                                THEN LEAST(interval '0.5 seconds' * (seen.returns + 1), longest.first)
                                ELSE LEAST(longest.first * power(2, LEAST(seen.returns, 20)),
                                           12 * p_tuning.dispatch_lease) END END AS wait
            FROM unnest(p_fates) AS fate
            JOIN dispatcher_callqueue AS seen ON seen.id = fate.call
            LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = fate.key_id
           CROSS JOIN LATERAL (
                 SELECT fate.fate = 'unknown' AND EXISTS (
                          SELECT FROM dispatcher_worker AS worker
                           WHERE seen.queue = ANY (worker.queues) AND worker.serves_until > p_now
                             AND (worker.tasks IS NULL OR seen.task = ANY (worker.tasks))) AS is_known) AS known
           CROSS JOIN LATERAL (SELECT LEAST(interval '1 minute', p_tuning.dispatch_lease) AS first) AS longest) AS fate
   WHERE call.id = ANY (ARRAY(SELECT fate.call FROM unnest(p_fates) AS fate)) AND call.id = fate.call
  RETURNING call.id, call.state::text, call.task::text, call.queue::text, call.attempt, fate.fate, fate.key::text;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_settle_a1ec3045 FROM PUBLIC;

CREATE TYPE dispatcher_found_a1ec3045 AS (
    now timestamptz,
    since timestamptz,
    open bigint[],
    busy bigint[],
    ids bigint[],
    keys dispatcher_key_room_a1ec3045[],
    lanes dispatcher_lane_a1ec3045[],
    is_parked bool,
    turn_keys bigint[],
    published text[],
    publish_room int[],
    full_queues text[],
    queues text[],
    again_at timestamptz
);

CREATE FUNCTION dispatcher_find_lanes_a1ec3045(p_worker uuid, p_queues text[], p_delivery text, p_room int, p_publish int, p_open bigint[],
    p_tuning dispatcher_tuning_a1ec3045, p_now timestamptz) RETURNS dispatcher_found_a1ec3045 LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := COALESCE(p_now, clock_timestamp());
  v_since timestamptz := v_now;
  v_queues text[];
  v_is_noted bool;
  v_open bigint[] := p_open;
  v_want bigint[];
  v_busy bigint[] := '{}';
  v_ids bigint[] := '{}';
  v_keys dispatcher_key_room_a1ec3045[] := '{}';
  v_lanes dispatcher_lane_a1ec3045[] := '{}';
  v_lane dispatcher_lane_a1ec3045;
  v_rows tid[] := '{}';
  v_noted record;
  v_from timestamptz := COALESCE(p_tuning.notes, '-infinity');
  v_noted_queues text[] := '{}';
  v_again_at timestamptz;
  v_turn_keys bigint[] := '{}';
  v_published text[] := '{}';
  v_publish_room int[] := '{}';
  v_full text[] := '{}';
  v_has_limited bool;
  v_has_kept bool;
  v_is_parked bool := false;
  v_is_fair bool := false;
  v_other record;
  v_left int;
  v_locked record;
BEGIN
  SELECT ARRAY(SELECT mine.name
                 FROM unnest(p_queues) AS mine (name)
                WHERE p_room > 0
                  AND (p_tuning.any_delivery
                       OR p_delivery = COALESCE((SELECT stored.delivery FROM dispatcher_queue AS stored
                                                  WHERE stored.name = mine.name), 'broker'))),
         (SELECT note.at FROM dispatcher_note AS note
           WHERE note.at > v_from AND note.at <= v_now ORDER BY note.at DESC LIMIT 1) IS NOT NULL,
         (SELECT site.lane_id FROM dispatcher_lanesite AS site
           WHERE site.place = -1 AND site.queue = ANY (p_queues) LIMIT 1) IS NOT NULL,
         (SELECT site.lane_id FROM dispatcher_lanesite AS site
           WHERE site.queue = ANY (p_queues) AND site.kept_until IS NOT NULL LIMIT 1) IS NOT NULL
    INTO v_queues, v_is_noted, v_has_limited, v_has_kept;
  IF p_delivery = 'broker' AND v_queues <> '{}' THEN
    SELECT COALESCE(array_agg(queue.name) FILTER (WHERE queue.room > 0), '{}'),
           COALESCE(array_agg(queue.room) FILTER (WHERE queue.room > 0), '{}'),
           COALESCE(array_agg(queue.name) FILTER (WHERE queue.room = 0), '{}')
      INTO v_published, v_publish_room, v_full
      FROM (SELECT mine.name, dispatcher_queue_room_a1ec3045(mine.name, p_room, p_tuning, v_now) AS room
              FROM unnest(v_queues) AS mine (name)) AS queue;
    v_queues := v_published;
  END IF;
  IF v_is_noted THEN
    v_noted := dispatcher_read_notes_a1ec3045(v_from, v_now, v_queues, p_room);
    v_open := v_open || v_noted.keys;
    v_rows := v_noted.rows;
    v_noted_queues := v_noted.queues;
    v_again_at := v_noted.again_at;
  END IF;
  IF v_queues <> '{}' THEN
    IF v_has_limited THEN v_rows := v_rows || dispatcher_limited_rows_a1ec3045(p_worker, v_queues, p_room, v_now); END IF;
    v_lanes := dispatcher_lanes_a1ec3045(v_queues, 0, p_room, v_rows, 'mine');
    IF v_lanes = '{}' THEN
      IF (SELECT site.lane_id FROM dispatcher_lanesite AS site
           WHERE site.place = 0 AND site.queue = ANY (v_queues) LIMIT 1) IS NOT NULL THEN
        BEGIN
          PERFORM FROM dispatcher_lanesite AS site
            WHERE site.place = 0 AND site.queue = ANY (v_queues)
            ORDER BY site.queue, site.priority DESC, site.served_at, site.lane_id
            LIMIT 1
              FOR NO KEY UPDATE;
          v_lanes := dispatcher_lanes_a1ec3045(v_queues, 0, p_room, '{}', 'mine');
        EXCEPTION WHEN lock_not_available THEN
          NULL;
        END;
      END IF;
    END IF;
  END IF;
  v_now := COALESCE(p_now, clock_timestamp());
  IF v_has_kept THEN
    v_open := v_open || ARRAY(SELECT kept.place
                                FROM (SELECT site.place FROM dispatcher_lanesite AS site
                                       WHERE site.queue = ANY (v_queues) AND site.kept_until IS NOT NULL
                                      OFFSET 0) AS kept
                               WHERE kept.place > 0);
  END IF;
  v_want := v_open;
  FOREACH v_lane IN ARRAY v_lanes LOOP
    v_want := v_want || v_lane.key_ids;
  END LOOP;
  FOR v_round IN 1 .. 2 LOOP
    EXIT WHEN v_want = '{}';
    BEGIN
      v_locked := dispatcher_lock_keys_a1ec3045(v_want, v_ids, p_worker, p_room + p_publish, p_tuning, v_now);
      IF v_locked.busy <> '{}' THEN
        IF NOT EXISTS (SELECT FROM unnest(v_lanes) AS lane WHERE NOT lane.key_ids && v_locked.busy) THEN
          RAISE lock_not_available;
        END IF;
      END IF;
    EXCEPTION WHEN lock_not_available THEN
      BEGIN
        PERFORM FROM dispatcher_ratelimitkey AS key
          WHERE key.id = ANY (v_want) AND key.id <> ALL (v_ids) ORDER BY key.id FOR NO KEY UPDATE;
      EXCEPTION WHEN lock_not_available THEN
        NULL;
      END;
      v_locked := dispatcher_lock_keys_a1ec3045(v_want, v_ids, p_worker, p_room + p_publish, p_tuning, v_now);
    END;
    v_now := COALESCE(p_now, clock_timestamp());
    v_keys := v_keys || v_locked.keys;
    v_ids := v_ids || v_locked.ids;
    v_busy := v_busy || v_locked.busy;
    v_open := v_open || v_locked.groups;
    EXIT WHEN v_round = 2;
    IF cardinality(v_lanes) >= p_room THEN
      FOR k IN 1 .. cardinality(v_locked.ids) LOOP
        CONTINUE WHEN v_locked.keys[k].fair_by IS NULL;
        v_is_fair := true;
        v_lanes := dispatcher_lanes_a1ec3045(v_queues, 0, p_room + 50, v_rows, 'mine');
        EXIT;
      END LOOP;
    END IF;
    IF v_has_kept THEN
      v_lanes := v_lanes || dispatcher_lanes_a1ec3045('{}', 0, 0, ARRAY(
        SELECT site.ctid
          FROM dispatcher_lanesite AS site
         WHERE site.queue = ANY (v_queues) AND site.kept_until <= v_now
           AND site.place = ANY (ARRAY(SELECT key.id FROM unnest(v_locked.keys) AS key
                                        WHERE NOT (key.room > 0
                                                   AND COALESCE(key.next_at <= v_now + p_tuning.horizon, true))))
           FOR NO KEY UPDATE SKIP LOCKED), 'mine');
    END IF;
    v_is_parked := v_locked.is_parked;
    EXIT WHEN NOT v_is_parked AND NOT v_is_fair;
    FOR v_other IN
      WITH RECURSIVE turn (key_id, room, queue) AS (
        SELECT key.id, key.room,
               (SELECT min(site.queue) FROM dispatcher_lanesite AS site WHERE site.place = key.id)
          FROM unnest(v_locked.keys) AS key
         WHERE key.room > 0 AND COALESCE(key.next_at <= v_now + p_tuning.horizon, true)
         UNION ALL
        SELECT turn.key_id, turn.room,
               (SELECT min(site.queue) FROM dispatcher_lanesite AS site
                 WHERE site.place = turn.key_id AND site.queue > turn.queue)
          FROM turn
         WHERE turn.queue IS NOT NULL
      )
      SELECT turn.key_id, turn.queue, LEAST(turn.room, GREATEST(p_room, 1))::int AS most,
             CASE WHEN turn.queue = ANY (v_queues) THEN 'mine'
                  WHEN queue.delivery = 'broker' THEN 'published'
                  WHEN queue.delivery = 'http' OR EXISTS (
                         SELECT FROM dispatcher_process AS process
                          WHERE turn.queue = ANY (process.queues) AND process.worker_id IS DISTINCT FROM p_worker)
                  THEN 'others' END AS taker
        FROM turn
       CROSS JOIN LATERAL (
             SELECT COALESCE((SELECT stored.delivery FROM dispatcher_queue AS stored WHERE stored.name = turn.queue),
                             'broker') AS delivery) AS queue
       WHERE turn.queue IS NOT NULL
    LOOP
      v_turn_keys := v_turn_keys || v_other.key_id;
      CONTINUE WHEN v_other.taker IS NULL;
      IF v_other.taker = 'published' AND v_other.queue <> ALL (v_published) THEN
        v_left := dispatcher_queue_room_a1ec3045(v_other.queue, p_publish, p_tuning, v_now);
        CONTINUE WHEN COALESCE(v_left, 0) = 0;
        v_published := v_published || v_other.queue;
        v_publish_room := v_publish_room || v_left;
      END IF;
      v_lanes := v_lanes || dispatcher_lanes_a1ec3045(ARRAY[v_other.queue], v_other.key_id, v_other.most, '{}', v_other.taker);
    END LOOP;
    v_want := ARRAY(SELECT DISTINCT spent.id FROM unnest(v_lanes) AS lane, unnest(lane.key_ids) AS spent (id)
                     WHERE spent.id <> ALL (v_ids || v_busy));
  END LOOP;
  RETURN (v_now, v_since, v_open, v_busy, v_ids, v_keys, v_lanes, v_is_parked, v_turn_keys, v_published,
          v_publish_room, v_full, v_noted_queues, v_again_at);
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_find_lanes_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_claim_a1ec3045(p_call uuid, p_ticket uuid, p_claim uuid, p_worker uuid, p_ahead interval, p_tuning dispatcher_tuning_a1ec3045,
    p_now timestamptz)
RETURNS TABLE (start_at timestamptz, refused text, attempt int, retry jsonb, queue text, is_paced bool, is_counted bool,
    at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off'
SET lock_timeout = '20ms' SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  v_call record;
  v_keys dispatcher_key_room_a1ec3045[];
  v_ids bigint[];
  v_costs int[];
BEGIN
  BEGIN
    SELECT call.state, call.started_at, call.attempt, call.retry, call.queue, call.expires_at, call.is_revoked
      INTO v_call
      FROM dispatcher_callqueue AS call
     WHERE call.id = p_call AND call.ticket = p_ticket
       AND (call.state = 'dispatched' OR (call.state = 'active' AND call.claim = p_claim))
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT array_agg(slot.key_id), array_agg(slot.cost) INTO v_ids, v_costs
      FROM dispatcher_slot AS slot WHERE slot.call_id = p_call AND slot.key_id IS NOT NULL;
    PERFORM FROM dispatcher_ratelimitkey AS key
      WHERE key.id = ANY (v_ids)
        AND (dispatcher_counts_a1ec3045(key.rate_limit, key.override_rate_limit, key.throttle_limit, key.override_throttle_limit)
             OR key.is_observed OR dispatcher_is_member_a1ec3045(key.name, key.is_group))
      ORDER BY key.id
        FOR NO KEY UPDATE;
  EXCEPTION WHEN lock_not_available THEN
    refused := 'busy';
    at := COALESCE(p_now, clock_timestamp());
    RETURN NEXT;
    RETURN;
  END;
  at := COALESCE(p_now, clock_timestamp());
  queue := v_call.queue;
  SELECT array_agg(key),
         max(dispatcher_paced_a1ec3045(key.last_at + dispatcher_spacing_a1ec3045(key.last_cost, key.throttle_limit, key.throttle_period),
                    v_costs[array_position(v_ids, key.id)], key.throttle_limit, key.throttle_period, at,
                    p_tuning.lead)),
         COALESCE(bool_or(key.rate_limit IS NOT NULL), false),
         CASE WHEN p_ahead IS NULL THEN NULL
              WHEN v_call.is_revoked THEN 'revoked'
              WHEN v_call.expires_at <= at THEN 'expired'
              WHEN bool_or(key.closed_until IS NOT NULL OR key.concurrency = 0)
                   OR EXISTS (SELECT FROM dispatcher_block AS block
                               WHERE block.key_id = ANY (v_ids) AND block.until > at) THEN 'closed' END
    INTO v_keys, start_at, is_counted, refused
    FROM dispatcher_room_a1ec3045(v_ids, p_worker, at, p_tuning.margin, p_tuning.ramp) AS key;
  is_paced := start_at IS NOT NULL;
  start_at := COALESCE(CASE WHEN p_ahead IS NOT NULL THEN start_at END, at);
  IF v_call.state = 'active' THEN
    start_at := v_call.started_at;
    attempt := v_call.attempt;
    retry := v_call.retry;
    refused := NULL;
    RETURN NEXT;
    RETURN;
  END IF;
  IF start_at - at > p_ahead THEN refused := COALESCE(refused, 'early'); END IF;
  IF refused IS NOT NULL THEN
    start_at := NULL;
    RETURN NEXT;
    RETURN;
  END IF;
  UPDATE dispatcher_callqueue AS call
     SET state = 'active', claim = p_claim, started_at = start_at, attempt = call.attempt + 1, returns = 0,
         published_at = COALESCE(call.published_at, at)
   WHERE call.id = p_call
  RETURNING call.attempt, call.retry INTO attempt, retry;
  UPDATE dispatcher_slot AS slot
     SET started_at = start_at, worker_id = p_worker, lease_until = start_at + p_tuning.lease
   WHERE slot.call_id = p_call;
  FOR i IN 1 .. COALESCE(cardinality(v_keys), 0) LOOP
    v_keys[i].is_counted := v_keys[i].is_counted OR dispatcher_is_member_a1ec3045(v_keys[i].name, v_keys[i].is_group);
    v_keys[i].used := v_costs[array_position(v_ids, v_keys[i].id)];
    IF v_keys[i].observed IS DISTINCT FROM NULL THEN
      v_keys[i].unstarted := v_keys[i].unstarted - v_keys[i].used;
      v_keys[i] := dispatcher_observe_a1ec3045(v_keys[i], v_keys[i].used::int, at, p_tuning);
    END IF;
    v_keys[i].last_cost := v_keys[i].used;
    v_keys[i].last_at := GREATEST(v_keys[i].last_at, start_at + p_tuning.slack);
  END LOOP;
  PERFORM dispatcher_count_starts_a1ec3045(v_keys);
  RETURN NEXT;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_claim_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_opens_at_a1ec3045(p_key dispatcher_key_room_a1ec3045, p_cost bigint, p_keys dispatcher_key_room_a1ec3045[], p_worker uuid, p_tuning dispatcher_tuning_a1ec3045,
    p_now timestamptz) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_at timestamptz := dispatcher_opening_a1ec3045(p_key, p_cost, p_tuning.horizon, p_tuning.margin, p_tuning.ramp, p_now);
BEGIN
  IF v_at IS NULL AND p_key.is_group THEN
    v_at := (SELECT min(dispatcher_opening_a1ec3045(COALESCE(mine, member), p_cost, p_tuning.horizon, p_tuning.margin, p_tuning.ramp,
                                 p_now))
               FROM dispatcher_room_a1ec3045(dispatcher_members_of_a1ec3045(p_key.name), p_worker, p_now, p_tuning.margin, p_tuning.ramp) AS member
               LEFT JOIN unnest(p_keys) AS mine ON mine.id = member.id
              WHERE member.fits >= p_cost);
  END IF;
  RETURN v_at;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_opens_at_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_runnable_a1ec3045(p_queue text, p_most int, p_horizon interval, p_margin interval, p_ramp interval,
    p_now timestamptz, OUT calls int, OUT since timestamptz, OUT active int)
LANGUAGE plpgsql STABLE SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off'
SET search_path FROM CURRENT AS $$
DECLARE
  v_own bigint := (SELECT key.id FROM dispatcher_ratelimitkey AS key WHERE key.name = 'queue:' || p_queue);
  v_ids bigint[] := '{}';
  v_left bigint[] := '{}';
  v_want bigint[];
  v_new record;
  v_lane record;
  v_head record;
  v_count int;
BEGIN
  IF (SELECT stored.delivery FROM dispatcher_queue AS stored WHERE stored.name = p_queue) = 'http' THEN
    p_horizon := '0';
  END IF;
  active := (SELECT count(*) FROM dispatcher_callqueue AS call WHERE call.queue = p_queue AND call.state = 'active');
  SELECT count(*), min(flown.since) INTO calls, since
    FROM (SELECT GREATEST(call.created_at, call.scheduled_at) AS since
            FROM dispatcher_callqueue AS call
           WHERE call.queue = p_queue AND call.state = 'dispatched'
           LIMIT p_most) AS flown;
  FOR v_lane IN
    WITH due AS MATERIALIZED (
      SELECT late.lane_id, count(*) AS calls, min(late.scheduled_at) AS since
        FROM (SELECT call.lane_id, call.scheduled_at
                FROM dispatcher_callqueue AS call
               WHERE call.state IN ('scheduled', 'retryable') AND call.queue = p_queue AND call.scheduled_at <= p_now
               LIMIT p_most) AS late
       GROUP BY late.lane_id
    ), noted AS MATERIALIZED (
      SELECT DISTINCT note.lane_id, note.key_id
        FROM (SELECT note.lane_id, note.key_id FROM dispatcher_note AS note
               WHERE note.at <= p_now ORDER BY note.at LIMIT 10000) AS note
    ), opened (key_id) AS MATERIALIZED (
      SELECT noted.key_id FROM noted WHERE noted.key_id IS NOT NULL
       UNION
      SELECT joined.id
        FROM noted
        JOIN dispatcher_ratelimitkey AS key ON key.id = noted.key_id
       CROSS JOIN LATERAL unnest(dispatcher_groups_of_a1ec3045(key.name)) AS joined (id)
       UNION
      SELECT site.place FROM dispatcher_lanesite AS site
       WHERE site.queue = p_queue AND site.kept_until IS NOT NULL AND site.place > 0
    ), found (lane_id) AS MATERIALIZED (
      SELECT ready.lane_id
        FROM (VALUES (0), (-1)) AS kind (place)
       CROSS JOIN LATERAL (
             SELECT site.lane_id FROM dispatcher_lanesite AS site
              WHERE site.place = kind.place AND site.queue = p_queue
              ORDER BY site.priority DESC, site.served_at, site.lane_id
              LIMIT 1000) AS ready
       UNION
      SELECT noted.lane_id FROM noted WHERE noted.lane_id IS NOT NULL
       UNION
      (SELECT parked.lane_id
         FROM opened
        CROSS JOIN LATERAL (
              SELECT site.lane_id FROM dispatcher_lanesite AS site
               WHERE site.place = opened.key_id AND site.queue = p_queue
               ORDER BY site.priority DESC, site.served_at, site.lane_id
               LIMIT 1000) AS parked
        LIMIT 1000)
       UNION
      SELECT due.lane_id FROM due WHERE due.lane_id IS NOT NULL
    )
    SELECT lane.id, array_remove(lane.key_ids || v_own, NULL) AS key_ids, due.since, COALESCE(due.calls, 0) AS due
      FROM found
     CROSS JOIN LATERAL (
           SELECT site.priority, site.served_at FROM dispatcher_lanesite AS site
            WHERE site.lane_id = found.lane_id AND site.queue = p_queue LIMIT 1) AS site
     CROSS JOIN LATERAL (
           SELECT lane.id, lane.key_ids FROM dispatcher_lane AS lane WHERE lane.id = found.lane_id LIMIT 1) AS lane
      LEFT JOIN due ON due.lane_id = lane.id
     ORDER BY site.priority DESC, site.served_at, lane.id
  LOOP
    EXIT WHEN calls >= p_most;
    SELECT GREATEST(head.created_at, head.scheduled_at) AS since, head.costs INTO v_head
      FROM dispatcher_callqueue AS head
     WHERE head.lane_id = v_lane.id AND head.state = 'available' AND head.oversized_key_id IS NULL
     ORDER BY head.position
     LIMIT 1;
    CONTINUE WHEN v_head.since IS NULL AND v_lane.due = 0;
    v_want := ARRAY(SELECT named.id FROM unnest(v_lane.key_ids) AS named (id) WHERE named.id <> ALL (v_ids));
    SELECT array_agg(key.id) AS ids, array_agg(key.room) AS room INTO v_new
      FROM (SELECT key.id, LEAST(dispatcher_room_now_a1ec3045(key, p_horizon, p_now),
                                 CASE WHEN key.is_group THEN (
                                   SELECT COALESCE(sum(dispatcher_room_now_a1ec3045(member, p_horizon, p_now)), 0)
                                     FROM dispatcher_room_a1ec3045(dispatcher_members_of_a1ec3045(key.name), NULL, p_now, p_margin, p_ramp) AS member) END
                                 ) AS room
              FROM dispatcher_room_a1ec3045(v_want, NULL, p_now, p_margin, p_ramp) AS key) AS key;
    v_ids := v_ids || v_new.ids;
    v_left := v_left || v_new.room;
    SELECT COALESCE(array_agg(spent.place), '{}') AS places, COALESCE(array_agg(spent.cost), '{}') AS costs,
           LEAST(p_most - calls, min(v_left[spent.place] / spent.cost)) AS most
      INTO v_new
      FROM (SELECT array_position(v_ids, key.id) AS place, COALESCE((v_head.costs ->> key.name)::bigint, 1) AS cost
              FROM dispatcher_ratelimitkey AS key
             WHERE key.id = ANY (v_lane.key_ids)) AS spent;
    CONTINUE WHEN v_new.most <= 0;
    v_count := LEAST(v_new.most, v_lane.due + (
      SELECT count(*)
        FROM (SELECT FROM dispatcher_callqueue AS call
               WHERE call.lane_id = v_lane.id AND call.state = 'available' AND call.oversized_key_id IS NULL
               ORDER BY call.position
               LIMIT v_new.most) AS call));
    FOR k IN 1 .. cardinality(v_new.places) LOOP
      v_left[v_new.places[k]] := v_left[v_new.places[k]] - v_count * v_new.costs[k];
    END LOOP;
    calls := calls + v_count;
    since := LEAST(since, v_head.since, v_lane.since);
  END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_runnable_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_wake_workers_a1ec3045(p_calls uuid[], p_queues text[], p_silence interval, p_is_eager bool)
RETURNS TABLE (queue text, is_published bool, worker_id uuid)
LANGUAGE plpgsql SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off'
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  v_queues text[] := p_queues;
  v_sent record;
  v_delivery text;
  v_queue text;
  v_processes int;
BEGIN
  FOR v_sent IN
    SELECT call.id, call.position, call.created_at, site.lane_id, site.queue, site.place
      FROM unnest(p_calls) AS first (id)
     CROSS JOIN LATERAL (
           SELECT called.id, called.lane_id, called.state, called.position, called.created_at
             FROM dispatcher_callqueue AS called
            WHERE called.id = first.id
            LIMIT 1) AS call
     CROSS JOIN LATERAL (
           SELECT placed.lane_id, placed.queue, placed.place
             FROM dispatcher_lanesite AS placed
            WHERE placed.lane_id = call.lane_id
            LIMIT 1) AS site
     WHERE call.state = 'available'
  LOOP
    IF v_sent.place <> 0 THEN
      CONTINUE WHEN v_sent.id <> (
        SELECT front.id
          FROM dispatcher_callqueue AS front
         WHERE front.lane_id = v_sent.lane_id AND front.state = 'available' AND front.oversized_key_id IS NULL
         ORDER BY front.position
         LIMIT 1);
    END IF;
    IF v_sent.place <> 0
       OR (v_sent.place IS NULL AND v_sent.created_at < clock_timestamp() - interval '500 milliseconds') THEN
      PERFORM set_config('synchronous_commit', 'off', true);
      INSERT INTO dispatcher_note (at, lane_id, is_forced, position)
      VALUES (clock_timestamp(), v_sent.lane_id, true, v_sent.position);
    END IF;
    IF v_sent.queue <> ALL (v_queues) THEN
      v_queues := v_queues || v_sent.queue::text;
    END IF;
  END LOOP;
  FOREACH queue IN ARRAY v_queues LOOP
    v_delivery := (SELECT stored.delivery FROM dispatcher_queue AS stored WHERE stored.name = queue);
    is_published := COALESCE(v_delivery, 'broker') = 'broker' OR p_is_eager AND v_delivery = 'direct';
    IF is_published THEN
      v_queue := queue;
      v_processes := (
        SELECT sum(worker.processes) FROM dispatcher_worker AS worker
         WHERE v_queue = ANY (worker.queues) AND worker.stopped_at IS NULL AND worker.lost_at IS NULL
           AND worker.seen_at > clock_timestamp() - p_silence);
      CONTINUE WHEN NOT p_is_eager AND v_processes <= (
        SELECT count(*) FROM (
          SELECT FROM dispatcher_callqueue AS call
           WHERE call.queue = v_queue AND call.state IN ('dispatched', 'active') AND call.state >= 'dispatched'
           LIMIT v_processes) AS call);
    END IF;
    worker_id := NULL;
    IF NOT (is_published AND p_is_eager) THEN
      worker_id := dispatcher_wake_a1ec3045(queue, NULL, NULL, p_silence, clock_timestamp());
      is_published := is_published AND worker_id IS NULL AND NOT EXISTS (
        SELECT FROM dispatcher_process AS process
         WHERE queue = ANY (process.queues) AND process.worker_id IS NOT NULL
           AND NOT pg_try_advisory_xact_lock_shared(hashtextextended(process.id::text, 0)));
    END IF;
    IF worker_id IS NOT NULL THEN
      PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_wake_workers_a1ec3045 FROM PUBLIC;

CREATE TYPE dispatcher_head_a1ec3045 AS (
    call uuid,
    key_costs int[],
    fate text,
    turn bigint,
    lane int,
    tier bigint,
    round bigint
);

CREATE FUNCTION dispatcher_heads_a1ec3045(p_found dispatcher_found_a1ec3045, p_queues text[], p_tasks text[], p_becomes text, p_most int, p_seats dispatcher_seat_a1ec3045[],
    p_seated bigint[], p_ranked uuid[], p_rounds bigint[], p_met bigint[], p_done bigint[], p_over uuid[],
    p_due bigint[], p_stride bigint[], p_is_strict bool) RETURNS dispatcher_head_a1ec3045[] LANGUAGE plpgsql AS $$
DECLARE
  v_heads dispatcher_head_a1ec3045[];
BEGIN
  v_heads := ARRAY(
    SELECT (head.id, head.key_costs, head.fate, head.turn, lane.n, line.tier, line.round)::dispatcher_head_a1ec3045
      FROM unnest(p_found.lanes) WITH ORDINALITY AS lane (id, row, queue, priority, on_limit, key_ids, place, served_at,
                                                          last_served_at, kept_until, waits_from, taker, n)
     CROSS JOIN LATERAL (
           SELECT call.id, call.key_costs, row_number() OVER () AS turn,
                  CASE WHEN call.is_revoked THEN 'cancelled'
                       WHEN call.expires_at <= p_found.now THEN 'expired'
                       WHEN lane.taker = 'mine' AND p_becomes = 'active' AND call.task <> ALL (p_tasks) THEN 'unknown'
                  END AS fate
             FROM (SELECT call.id, call.key_costs, call.is_revoked, call.expires_at, call.task
                     FROM dispatcher_callqueue AS call
                    WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
                      AND call.state = 'available' AND call.oversized_key_id IS NULL AND call.id <> ALL (p_over)
                    ORDER BY call.position
                    LIMIT COALESCE(p_seats[array_position(p_seated, lane.id)].heads, p_most)
                      FOR NO KEY UPDATE SKIP LOCKED) AS call) AS head
     CROSS JOIN LATERAL (
           SELECT COALESCE(CASE WHEN p_is_strict THEN array_position(p_queues, lane.queue) END, 1)::bigint * 65536
                  - lane.priority AS tier,
                  COALESCE(p_rounds[array_position(p_ranked, head.id)],
                           100000 * (head.turn + cardinality(array_positions(p_met, lane.id)))) AS round,
                  CASE WHEN lane.taker = 'mine' AND isfinite(lane.kept_until)
                        AND (lane.last_served_at IS NULL OR lane.kept_until > p_found.now)
                       THEN '-infinity' ELSE COALESCE(lane.last_served_at, lane.served_at) END AS at) AS line
     WHERE lane.id <> ALL (p_done)
     ORDER BY line.tier, line.round, line.at, lane.id, head.turn);
  IF p_stride IS NOT NULL THEN
    v_heads := ARRAY(
      SELECT v_heads[ranked.n]
        FROM (SELECT head.n, head.tier, head.round, mine.queue,
                     row_number() OVER (PARTITION BY (p_found.lanes[head.lane]).queue ORDER BY head.n) AS nth
                FROM unnest(v_heads) WITH ORDINALITY AS head (call, key_costs, fate, turn, lane, tier, round, n)
               CROSS JOIN LATERAL (
                     SELECT array_position(p_queues, (p_found.lanes[head.lane]).queue) AS queue) AS mine) AS ranked
       ORDER BY ranked.tier, p_due[ranked.queue] + p_stride[ranked.queue] * ranked.nth NULLS FIRST, ranked.round,
                ranked.queue NULLS FIRST, ranked.n);
  END IF;
  RETURN v_heads;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_heads_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_line_up_a1ec3045(p_found dispatcher_found_a1ec3045, p_keys dispatcher_key_room_a1ec3045[], p_served bigint[], p_moves dispatcher_move_a1ec3045[], p_open bigint[],
    p_seated bigint[], p_seats dispatcher_seat_a1ec3045[], p_lines dispatcher_line_a1ec3045[], p_over uuid[], p_until timestamptz,
    OUT moves dispatcher_move_a1ec3045[], OUT opened bigint[], OUT paid dispatcher_line_a1ec3045[]) LANGUAGE plpgsql AS $$
DECLARE
  v_lane record;
BEGIN
  moves := p_moves;
  opened := p_open;
  FOR v_lane IN
    SELECT lane.id, key.id AS key_id, seat.n, seat.line,
           dispatcher_turn_a1ec3045(COALESCE(head.cost, 1), (p_lines[seat.line]).weight) AS length
      FROM unnest(p_found.lanes) AS lane
     CROSS JOIN LATERAL (SELECT array_position(p_seated, lane.id) AS n) AS mine
     CROSS JOIN LATERAL (SELECT mine.n, (p_seats[mine.n]).line, (p_seats[mine.n]).cost_at) AS seat
      JOIN unnest(p_keys) AS key ON key.id = (p_lines[seat.line]).key_id
     CROSS JOIN LATERAL (
           SELECT call.key_costs[seat.cost_at] AS cost
             FROM dispatcher_callqueue AS call
            WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
              AND call.state = 'available' AND call.oversized_key_id IS NULL AND call.id <> ALL (p_over)
            ORDER BY call.position
            LIMIT 1) AS head
     WHERE (key.room <= 0 OR key.next_at > p_until OR key.id = ANY (p_found.turn_keys)
            OR EXISTS (SELECT FROM unnest(p_seats) WITH ORDINALITY AS other
                        WHERE (p_lines[other.line]).key_id = key.id AND other.ordinality <> seat.n))
       AND NOT EXISTS (SELECT FROM unnest(moves) AS move WHERE move.lane = lane.id)
     ORDER BY array_position(p_served, lane.id) NULLS FIRST, lane.served_at, lane.id
  LOOP
    IF p_seats[v_lane.n].turn IS NULL THEN
      p_seats[v_lane.n].turn := p_lines[v_lane.line].next;
      p_lines[v_lane.line].next := p_lines[v_lane.line].next + v_lane.length;
    END IF;
    moves := moves
      || (v_lane.id, v_lane.key_id, dispatcher_turn_at_a1ec3045(p_seats[v_lane.n].turn), NULL, NULL, true, NULL)::dispatcher_move_a1ec3045;
    opened := opened || v_lane.key_id;
  END LOOP;
  FOR v_lane IN
    SELECT seat.n, seat.line, seat.length
      FROM (SELECT n, (p_seats[n]).line, (p_seats[n]).length, (p_seats[n]).turn, p_seated[n] AS lane
              FROM generate_subscripts(p_seats, 1) AS n) AS seat
     WHERE seat.turn IS NOT NULL
       AND NOT EXISTS (SELECT FROM unnest(moves) AS move WHERE move.lane = seat.lane AND move.is_turn)
  LOOP
    p_lines[v_lane.line].next := p_lines[v_lane.line].next - v_lane.length;
  END LOOP;
  paid := ARRAY(
    SELECT line FROM unnest(p_lines) AS line
     WHERE line.next <> line.was
       AND (line.key_id = ANY (p_found.turn_keys)
            OR EXISTS (SELECT FROM unnest(moves) AS move WHERE move.place = line.key_id AND move.is_turn)));
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_line_up_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_note_limits_a1ec3045(p_found dispatcher_found_a1ec3045, p_chosen dispatcher_chosen_a1ec3045, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_calls uuid[] := '{}';
  v_queues text[] := '{}';
  v_data jsonb[] := '{}';
  v_start dispatcher_start_a1ec3045;
  v_stops dispatcher_fate_a1ec3045[] := p_chosen.fates;
  v_stop dispatcher_fate_a1ec3045;
  v_move dispatcher_move_a1ec3045;
  v_before dispatcher_key_room_a1ec3045;
  v_after dispatcher_key_room_a1ec3045;
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
    v_stops := v_stops || (v_move.stopped, 'waits', NULL, v_move.place, NULL, v_move.queue)::dispatcher_fate_a1ec3045;
  END LOOP;
  FOREACH v_stop IN ARRAY v_stops LOOP
    CONTINUE WHEN v_stop.call IS NULL OR v_stop.fate NOT IN ('waits', 'later', 'oversized');
    v_members := ARRAY[v_stop.key_id];
    FOR i IN 0 .. cardinality(p_found.ids) LOOP
      v_after := p_chosen.keys[CASE i WHEN 0 THEN array_position(p_found.ids, v_stop.key_id) ELSE i END];
      CONTINUE WHEN v_after.id <> ALL (v_members);
      IF i = 0 THEN
        v_name := v_after.name;
        IF v_after.is_group THEN v_members := v_members || dispatcher_members_of_a1ec3045(v_name); END IF;
      END IF;
      v_before := p_found.keys[array_position(p_found.ids, v_after.id)];
      v_limit := CASE
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
REVOKE EXECUTE ON FUNCTION dispatcher_note_limits_a1ec3045 FROM PUBLIC;

CREATE TYPE dispatcher_site_a1ec3045 AS (
    row tid,
    place bigint,
    served_at timestamptz,
    last_served_at timestamptz,
    kept_until timestamptz,
    waits_from bigint
);

CREATE FUNCTION dispatcher_write_lanes_a1ec3045(p_found dispatcher_found_a1ec3045, p_chosen dispatcher_chosen_a1ec3045, p_queues text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_sites dispatcher_site_a1ec3045[];
BEGIN
  v_sites := ARRAY(
    SELECT (lane.row, site.place, COALESCE(site.served_at, site.last_served_at),
            CASE WHEN site.is_turn THEN site.last_served_at END, site.kept_until, site.waits_from)::dispatcher_site_a1ec3045
      FROM unnest(p_found.lanes) AS lane
     CROSS JOIN LATERAL (
           SELECT move.served_at, move.is_turn, move.kept_until, turn.turn,
                  COALESCE(p_found.now + turn.turn * interval '1 microsecond', lane.last_served_at, lane.served_at)
                  AS last_served_at,
                  CASE WHEN move.lane IS NOT NULL THEN move.place WHEN first.position IS NOT NULL THEN 0 END AS place,
                  COALESCE(first.position,
                           (SELECT max(call.position) + 1 FROM dispatcher_callqueue AS call
                             WHERE turn.turn IS NOT NULL AND COALESCE(call.lane_id, 0) = lane.id
                               AND call.id = ANY (ARRAY(SELECT start.call FROM unnest(p_chosen.starts) AS start))),
                           lane.waits_from) AS waits_from
             FROM (SELECT array_position(p_chosen.served, lane.id) AS turn) AS turn
             LEFT JOIN unnest(p_chosen.moves) AS move ON move.lane = lane.id
             LEFT JOIN LATERAL (
                  SELECT call.position
                    FROM dispatcher_callqueue AS call
                   WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
                     AND call.state = 'available' AND call.oversized_key_id IS NULL
                   ORDER BY call.position
                   LIMIT 1) AS first ON true
          OFFSET 0) AS site
     WHERE site.place IS DISTINCT FROM lane.place OR site.kept_until IS DISTINCT FROM lane.kept_until
        OR site.served_at IS NOT NULL OR lane.last_served_at IS NOT NULL
        OR site.waits_from >= lane.waits_from + 64
        OR (site.turn IS NOT NULL
            AND (lane.served_at < p_found.now - interval '1 minute' OR p_found.is_parked
                 OR cardinality(p_found.lanes) > 1
                 OR (SELECT other.lane_id FROM dispatcher_lanesite AS other
                      WHERE other.place = 0 AND other.queue = ANY (p_queues) AND other.lane_id <> lane.id LIMIT 1)
                    IS NOT NULL)));
  IF v_sites <> '{}' THEN
    UPDATE dispatcher_lanesite AS site
       SET place = settled.place, served_at = settled.served_at, last_served_at = settled.last_served_at,
           kept_until = settled.kept_until, waits_from = settled.waits_from
      FROM unnest(v_sites) AS settled
     WHERE site.ctid = ANY (ARRAY(SELECT settled.row FROM unnest(v_sites) AS settled)) AND site.ctid = settled.row;
  END IF;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_write_lanes_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_choose_a1ec3045(p_found dispatcher_found_a1ec3045, p_worker uuid, p_queues text[], p_tasks text[], p_room int, p_becomes text,
    p_due bigint[], p_stride bigint[], p_is_strict bool, p_tuning dispatcher_tuning_a1ec3045) RETURNS dispatcher_chosen_a1ec3045 LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := p_found.now;
  v_until timestamptz := p_found.now + p_tuning.horizon;
  v_ids bigint[] := p_found.ids;
  v_keys dispatcher_key_room_a1ec3045[] := p_found.keys;
  v_publish int[] := p_found.publish_room;
  v_behind bigint[] := array_fill(0, ARRAY[cardinality(p_found.ids)]);
  v_key dispatcher_key_room_a1ec3045;
  v_counted dispatcher_key_room_a1ec3045[] := '{}';
  v_counted_at timestamptz;
  v_left int := p_room;
  v_due bigint[] := p_due;
  v_most int := p_room;
  v_starts dispatcher_start_a1ec3045[] := '{}';
  v_start dispatcher_start_a1ec3045;
  v_counts bool := false;
  v_fates dispatcher_fate_a1ec3045[] := '{}';
  v_served bigint[] := '{}';
  v_moves dispatcher_move_a1ec3045[] := '{}';
  v_move dispatcher_move_a1ec3045;
  v_notes dispatcher_pending_a1ec3045[] := '{}';
  v_wake uuid[] := '{}';
  v_open bigint[] := p_found.open;
  v_done bigint[] := '{}';
  v_over uuid[] := '{}';
  v_is_over bool;
  v_met bigint[] := '{}';
  v_short int;
  v_head dispatcher_head_a1ec3045;
  v_lane dispatcher_lane_a1ec3045;
  v_call record;
  v_at_queue int;
  v_is_own bool;
  v_kind int;
  v_least int;
  v_by int;
  v_by_id bigint;
  v_by_cost int;
  v_cost int;
  v_at timestamptz;
  v_opens timestamptz;
  v_ks int[];
  v_costs int[];
  v_members jsonb;
  v_worker uuid;
  v_seated bigint[];
  v_seats dispatcher_seat_a1ec3045[];
  v_lines dispatcher_line_a1ec3045[];
  v_ranked uuid[];
  v_rounds bigint[];
  v_one_by_one bool;
  s int;
  v_line int;
  k int;
  m int;
BEGIN
  IF v_publish <> '{}' THEN v_most := GREATEST(v_most, (SELECT max(room) FROM unnest(v_publish) AS room)); END IF;
  v_most := v_most / GREATEST(1, COALESCE(cardinality(p_found.lanes), 0)) + 1;
  FOR i IN 1 .. cardinality(v_ids) LOOP
    IF v_keys[i].fair_by IS NOT NULL THEN
      SELECT share.lanes, share.seats, share.lines INTO v_seated, v_seats, v_lines
        FROM dispatcher_shares_a1ec3045(p_found.lanes, v_ids, v_most) AS share;
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
        FROM dispatcher_rounds_a1ec3045(v_seated, v_seats, v_lines, v_met, v_done, v_over, v_one_by_one) AS ranked;
    END IF;
    FOREACH v_head IN ARRAY dispatcher_heads_a1ec3045(p_found, p_queues, p_tasks, p_becomes, v_most, v_seats, v_seated, v_ranked, v_rounds,
                                   v_met, v_done, v_over, v_due, p_stride, p_is_strict) LOOP
      v_lane := p_found.lanes[v_head.lane];
      CONTINUE WHEN v_lane.id = ANY (v_done) OR (v_lane.taker = 'mine' AND v_left = 0);
      v_at_queue := CASE WHEN v_lane.taker = 'published' OR p_becomes = 'dispatched'
                         THEN array_position(p_found.published, v_lane.queue) END;
      CONTINUE WHEN v_publish[v_at_queue] = 0;
      IF v_lane.priority < v_short OR (v_short IS NOT NULL AND (p_stride IS NOT NULL OR p_is_strict)) THEN
        v_is_over := false;
        EXIT;
      END IF;
      v_met := v_met || v_lane.id;
      IF v_seats IS NOT NULL THEN
        s := array_position(v_seated, v_lane.id);
        v_line := v_seats[s].line;
      END IF;
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
        IF v_keys[k].is_group THEN
          SELECT member.ordinality INTO m
            FROM unnest(v_keys) WITH ORDINALITY AS member
           WHERE member.room >= v_cost AND member.fits >= v_cost AND COALESCE(member.next_at <= v_until, true)
             AND NOT member.is_group AND starts_with(member.name, rtrim(v_keys[k].name, '*'))
           ORDER BY member.own >= v_cost DESC, member.room DESC, member.last_at NULLS FIRST, member.id
           LIMIT 1;
        END IF;
        v_kind := CASE WHEN k IS NULL AND v_lane.key_ids[i] = ANY (p_found.busy) THEN 3
                       WHEN k IS NULL THEN 9
                       WHEN v_keys[k].fits < v_cost THEN 1
                       WHEN v_keys[k].room < v_cost OR v_keys[k].next_at > v_until THEN 2
                       WHEN v_keys[k].is_group AND m IS NULL
                       THEN CASE WHEN v_ids[k] = ANY (p_found.busy) THEN 3 ELSE 2 END
                       WHEN v_lane.taker = 'mine' AND (v_keys[k].own < v_cost OR v_keys[m].own < v_cost) THEN 4
                       WHEN v_lane.taker = 'published'
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
        v_at := GREATEST(v_at, dispatcher_paced_a1ec3045(v_keys[k].next_at, v_cost, v_keys[k].throttle_limit, v_keys[k].throttle_period,
                                      v_now, p_tuning.lead),
                         dispatcher_paced_a1ec3045(v_keys[m].next_at, v_cost, v_keys[m].throttle_limit, v_keys[m].throttle_period,
                                v_now, p_tuning.lead));
      END LOOP;
      IF v_head.fate IS NOT NULL OR v_least = 1 OR (v_least = 2 AND v_lane.on_limit <> 'wait') THEN
        IF v_least = 2 AND v_lane.on_limit = 'reschedule' THEN
          v_key := v_keys[v_by];
          v_key.unstarted := v_key.unstarted + v_behind[v_by];
          v_key.next_at := v_key.next_at + dispatcher_spacing_a1ec3045(v_behind[v_by], v_key.throttle_limit, v_key.throttle_period);
          v_opens := dispatcher_opens_at_a1ec3045(v_key, v_by_cost, v_keys, p_worker, p_tuning, p_found.since);
          v_behind[v_by] := v_behind[v_by] + v_by_cost;
        END IF;
        v_fates := v_fates || (v_head.call,
          COALESCE(v_head.fate, CASE WHEN v_lane.on_limit = 'drop' THEN 'dropped' WHEN v_least = 1 THEN 'oversized'
                                     ELSE 'later' END),
          COALESCE(v_opens, v_now + p_tuning.later), v_by_id, v_by_cost, v_lane.queue)::dispatcher_fate_a1ec3045;
        v_over := v_over || v_head.call;
        CONTINUE WHEN cardinality(v_fates) > 50;
        IF v_head.turn = v_most THEN
          v_short := GREATEST(v_short, v_lane.priority);
          v_is_over := false;
        END IF;
        CONTINUE WHEN p_stride IS NULL AND v_seats IS NULL;
        v_is_over := false;
        EXIT;
      ELSIF v_least < 9 THEN
        v_done := v_done || v_lane.id;
        v_is_own := v_least = 4 AND v_lane.taker = 'mine' AND (p_becomes = 'active' OR p_worker IS NOT NULL);
        v_move := (v_lane.id, CASE WHEN v_is_own THEN -1 ELSE v_by_id END,
                   NULL, NULL, CASE WHEN v_least = 2 THEN v_head.call END, false, v_lane.queue);
        IF s IS NOT NULL AND (v_least = 3 OR (v_least = 2 AND v_by_id = v_lines[v_line].key_id)) THEN
          IF v_least = 2 AND v_seats[s].turn IS NULL THEN
            v_seats[s].turn := v_lines[v_line].next;
            v_seats[s].length := dispatcher_turn_a1ec3045(v_by_cost, v_lines[v_line].weight);
            v_lines[v_line].next := v_lines[v_line].next + v_seats[s].length;
          END IF;
          IF v_seats[s].turn IS NOT NULL THEN
            v_move.place := v_lines[v_line].key_id;
            v_move.served_at := dispatcher_turn_at_a1ec3045(v_seats[s].turn);
            v_move.is_turn := true;
          END IF;
        END IF;
        v_moves := v_moves || v_move;
        CASE v_least
          WHEN 2 THEN
            v_keys[v_by].room := 0;
            v_open := v_open || v_by_id;
            v_opens := dispatcher_opens_at_a1ec3045(v_keys[v_by], v_by_cost, v_keys, p_worker, p_tuning, p_found.since);
            IF v_opens IS NOT NULL THEN v_notes := v_notes || (v_opens, NULL, v_by_id)::dispatcher_pending_a1ec3045; END IF;
          WHEN 3 THEN
            v_notes := v_notes || (v_now + interval '20 milliseconds', NULL, v_move.place)::dispatcher_pending_a1ec3045;
          ELSE
            IF v_is_own THEN
              v_keys[v_by].own := 0;
              v_wake := v_wake || dispatcher_wake_a1ec3045(v_lane.queue, v_by_id, NULL, p_tuning.silence, v_now);
            END IF;
        END CASE;
        CONTINUE WHEN p_stride IS NULL AND (s IS NULL OR (v_move.is_turn AND v_least = 2));
        v_is_over := false;
        EXIT;
      ELSIF v_lane.taker <> 'others' THEN
        v_start := (v_head.call, v_at, CASE WHEN v_lane.taker = 'mine' THEN p_becomes ELSE 'dispatched' END, v_members,
                    CASE WHEN v_ks = '{}' THEN '{NULL}' ELSE '{}' END,
                    CASE WHEN v_ks = '{}' THEN '{1}' ELSE v_costs END, false)::dispatcher_start_a1ec3045;
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
        IF s IS NOT NULL THEN
          k := v_seats[s].clock;
          IF v_seats[s].turn IS NOT NULL THEN
            v_lines[k].next := GREATEST(v_lines[k].next, v_seats[s].turn);
            v_seats[s].turn := NULL;
          ELSE
            IF v_lines[v_line].key_id <> ALL (p_found.turn_keys) THEN
              v_lines[k].next := GREATEST(v_lines[k].next, v_lines[v_line].next);
            END IF;
            v_lines[v_line].next := v_lines[v_line].next
              + dispatcher_turn_a1ec3045(COALESCE(v_head.key_costs[v_seats[s].cost_at], 1), v_lines[v_line].weight);
          END IF;
        END IF;
        IF v_seats IS NOT NULL AND (v_head.turn = COALESCE(v_seats[s].heads, v_most) OR (v_one_by_one AND s > 0)) THEN
          v_is_over := false;
        END IF;
      ELSE
        v_done := v_done || v_lane.id;
        v_opens := CASE WHEN isfinite(v_lane.kept_until) THEN v_lane.kept_until END;
        IF v_opens IS NULL THEN
          v_worker := dispatcher_wake_a1ec3045(v_lane.queue, v_lane.place, NULL, p_tuning.silence, v_now);
          v_wake := v_wake || v_worker;
          v_opens := CASE WHEN v_worker IS NOT NULL THEN v_now + interval '100 milliseconds'
                          WHEN v_lane.kept_until = 'infinity' AND EXISTS (
                                 SELECT FROM dispatcher_lanesite AS site
                                  WHERE site.queue = v_lane.queue AND site.kept_until <= v_now AND site.place = 0)
                          THEN v_now
                          WHEN v_lane.kept_until = 'infinity' THEN v_now + p_tuning.keep END;
        END IF;
        v_move := (v_lane.id, v_lane.place, dispatcher_turn_at_a1ec3045(v_seats[s].turn), COALESCE(v_opens, 'infinity'), NULL,
                   v_seats[s].turn IS NOT NULL, NULL)::dispatcher_move_a1ec3045;
        IF v_opens IS NULL THEN
          v_move.served_at := COALESCE(dispatcher_turn_at_a1ec3045(v_seats[s].turn + v_seats[s].length), v_now);
        ELSIF v_opens <= v_now AND NOT v_move.is_turn THEN
          v_move.place := 0;
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
          v_key.next_at := v_counted_at + dispatcher_spacing_a1ec3045(v_cost, v_key.throttle_limit, v_key.throttle_period);
        END IF;
        IF v_lane.taker = 'others' THEN
          v_notes := v_notes || (v_opens, NULL, v_key.id)::dispatcher_pending_a1ec3045;
        ELSE
          v_key.own := v_key.own - v_cost;
          v_key.held := v_key.held + v_cost;
          v_start.key_ids := v_start.key_ids || v_key.id;
          v_start.is_counted := v_start.is_counted OR v_key.rate_limit IS NOT NULL;
          IF v_start.state = 'dispatched' THEN
            v_key.unstarted := v_key.unstarted + v_cost;
          ELSIF v_key.is_counted THEN
            v_counts := true;
            IF v_key.observed IS DISTINCT FROM NULL THEN v_key := dispatcher_observe_a1ec3045(v_key, v_cost, v_now, p_tuning); END IF;
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
  FOR i IN 1 .. cardinality(v_moves) LOOP
    k := array_position(v_ids, v_moves[i].place);
    IF v_moves[i].kept_until = 'infinity' AND v_keys[k].room > 0 AND COALESCE(v_keys[k].next_at <= v_until, true) THEN
      s := array_position(v_seated, v_moves[i].lane);
      v_moves[i] := CASE WHEN v_seats[s].turn IS NULL THEN (v_moves[i].lane, 0, NULL, NULL, NULL, false, NULL)::dispatcher_move_a1ec3045
                         ELSE (v_moves[i].lane, v_moves[i].place, dispatcher_turn_at_a1ec3045(v_seats[s].turn), v_now, NULL, true,
                               NULL)::dispatcher_move_a1ec3045 END;
    END IF;
  END LOOP;
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
        v_moves := v_moves || (v_call.lane, v_ids[i], NULL, NULL, v_call.id, false, v_call.queue)::dispatcher_move_a1ec3045;
        v_open := v_open || v_ids[i];
      END LOOP;
    END LOOP;
  END IF;
  IF v_seats IS NOT NULL THEN
    SELECT lined.moves, lined.opened, lined.paid INTO v_moves, v_open, v_lines
      FROM dispatcher_line_up_a1ec3045(p_found, v_keys, v_served, v_moves, v_open, v_seated, v_seats, v_lines, v_over, v_until) AS lined;
  END IF;
  RETURN (v_starts, v_fates, v_served, v_moves, v_notes, array_remove(v_wake, NULL), v_keys, v_counts, v_counted,
          v_open, v_left, v_publish, v_lines);
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_choose_a1ec3045 FROM PUBLIC;

CREATE FUNCTION dispatcher_take_a1ec3045(p_worker uuid, p_queues text[], p_tasks text[], p_room int, p_becomes text, p_publish int,
    p_process uuid, p_is_marked bool, p_may_rest bool, p_is_pulled bool, p_keys bigint[],
    p_calls uuid[], p_tickets uuid[], p_claims uuid[], p_states text[], p_reasons text[], p_crashes smallint[],
    p_results jsonb[], p_errors jsonb[], p_waits interval[],
    p_due bigint[], p_stride bigint[], p_is_strict bool, p_tuning dispatcher_tuning_a1ec3045, p_now timestamptz)
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
  v_found dispatcher_found_a1ec3045;
  v_chosen dispatcher_chosen_a1ec3045;
  v_keys dispatcher_key_room_a1ec3045[] := '{}';
  v_key dispatcher_key_room_a1ec3045;
  v_queues text[];
  v_freed record;
  v_queue text;
  v_served_by text;
  v_has_room bool;
  v_is_ready bool := false;
  v_least bigint;
  v_delivery text := CASE WHEN p_becomes = 'dispatched' THEN 'broker' WHEN p_is_pulled THEN 'http' ELSE 'direct' END;
  v_settled int := 0;
  v_is_useful bool;
  n int;
  v_fair text[] := '{}';
BEGIN
  ended := '{}';
  locked := '{}';
  is_full := false;
  IF cardinality(p_calls) > 0 THEN
    v_ends := dispatcher_record_ends_a1ec3045(p_calls, p_tickets, p_claims, p_states, p_reasons, p_crashes, p_results, p_errors, p_waits,
                           v_now);
    ended := v_ends.ended;
    locked := v_ends.locked;
    freed := v_ends.freed;
    v_open := v_open || freed;
  END IF;
  v_found := dispatcher_find_lanes_a1ec3045(p_worker, p_queues, v_delivery, p_room, p_publish, v_open, p_tuning, p_now);
  v_chosen := dispatcher_choose_a1ec3045(v_found, p_worker, p_queues, p_tasks, p_room, p_becomes, p_due, p_stride, p_is_strict, p_tuning);
  v_now := v_found.now;
  v_open := v_chosen.open || v_found.turn_keys;
  v_queues := v_found.queues;
  again_at := v_found.again_at;
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
    IF v_chosen.counts THEN PERFORM dispatcher_count_starts_a1ec3045(v_chosen.counted || v_chosen.keys); END IF;
    IF random() < 0.004 THEN PERFORM dispatcher_hint_slots_a1ec3045(v_found.ids); END IF;
  END IF;
  IF v_chosen.fates <> '{}' THEN
    RETURN QUERY
    SELECT fate.id, NULL::uuid, fate.state, fate.task, NULL::jsonb, NULL::jsonb, NULL::jsonb, NULL::jsonb, NULL::jsonb,
           fate.queue, fate.attempt, NULL::jsonb, NULL::jsonb, NULL::timestamptz, NULL::timestamptz, NULL::bigint[],
           NULL::bool, NULL::timestamptz, fate.fate, fate.key,
           NULL::uuid[], NULL::timestamptz, NULL::text[], NULL::uuid[], NULL::uuid[], NULL::bigint[], NULL::bool, v_now,
           NULL::bigint
      FROM dispatcher_settle_a1ec3045(v_chosen.fates, p_tuning, v_now) AS fate;
    GET DIAGNOSTICS v_settled = ROW_COUNT;
  END IF;
  IF p_tuning.keeps_events AND (v_chosen.starts <> '{}' OR v_chosen.moves <> '{}' OR v_chosen.fates <> '{}') THEN
    PERFORM dispatcher_note_limits_a1ec3045(v_found, v_chosen, v_found.now + p_tuning.horizon);
  END IF;
  IF v_chosen.lines IS NOT NULL THEN PERFORM dispatcher_pay_a1ec3045(v_chosen.lines); END IF;
  IF v_found.lanes <> '{}' THEN PERFORM dispatcher_write_lanes_a1ec3045(v_found, v_chosen, p_queues); END IF;
  IF v_found.turn_keys <> '{}' THEN
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
        v_freed := dispatcher_free_lanes_a1ec3045(v_key.id, v_key.room, ARRAY(SELECT move.lane FROM unnest(v_chosen.moves) AS move));
        v_queues := v_queues || v_freed.queues;
      ELSE
        v_freed := dispatcher_show_lanes_a1ec3045(v_key.id, v_now);
        v_fair := v_fair || v_freed.queues;
      END IF;
      IF v_freed.is_short THEN
        v_chosen.notes := v_chosen.notes || (v_now + interval '20 milliseconds', NULL, v_key.id)::dispatcher_pending_a1ec3045;
        again_at := LEAST(again_at, v_now + interval '20 milliseconds');
      END IF;
    ELSE
      is_full := true;
      v_chosen.notes := v_chosen.notes
        || (dispatcher_opens_at_a1ec3045(v_key, 1, v_chosen.keys, p_worker, p_tuning, v_found.since), NULL, v_key.id)::dispatcher_pending_a1ec3045;
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
       AND (note.key_id = ANY (v_found.busy)
            OR NOT EXISTS (SELECT FROM dispatcher_note AS earlier
                            WHERE earlier.key_id = note.key_id AND earlier.at <= note.at
                              AND earlier.at > COALESCE(p_tuning.notes, '-infinity')));
    again_at := LEAST(again_at,
                      CASE WHEN p_becomes = 'active' THEN (SELECT min(note.at) FROM unnest(v_chosen.notes) AS note) END,
                      CASE WHEN v_found.busy && v_open THEN v_now + interval '20 milliseconds' END);
  END IF;
  v_is_useful := v_chosen.room_left <= 0 OR v_chosen.starts <> '{}' OR v_settled > 0;
  IF NOT v_is_useful THEN
    v_is_useful := EXISTS (SELECT FROM unnest(v_chosen.moves) AS move WHERE move.is_turn IS NOT TRUE);
  END IF;
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
    n := array_position(v_found.published, v_queue);
    v_has_room := v_queue <> ALL (v_found.full_queues)
      AND (v_chosen.publish_left[n] = 0
           AND v_found.publish_room[n] < CASE WHEN p_becomes = 'dispatched' AND v_queue = ANY (p_queues) THEN p_room
                                              ELSE p_publish END) IS NOT TRUE;
    v_is_ready := v_is_ready OR (v_queue = ANY (p_queues) AND v_has_room);
    IF v_served_by = 'broker' THEN
      IF v_has_room THEN publish := publish || v_queue; END IF;
    ELSIF v_is_useful OR v_queue <> ALL (p_queues) OR v_served_by <> v_delivery THEN
      wake := array_remove(wake || dispatcher_wake_a1ec3045(v_queue, NULL, p_process, p_tuning.silence, v_now), NULL);
    END IF;
  END LOOP;
  FOREACH v_key IN ARRAY v_chosen.keys LOOP
    v_least := LEAST(v_least, v_key.room);
  END LOOP;
  is_full := is_full OR COALESCE(v_least <= 0 OR v_is_ready AND v_least < 16, false);
  IF v_is_ready AND p_room > 0 THEN
    again_at := CASE WHEN v_is_useful THEN v_now ELSE LEAST(again_at, v_now + interval '20 milliseconds') END;
  END IF;
  IF v_chosen.room_left = p_room AND p_may_rest AND NOT p_is_marked AND COALESCE(again_at > v_now, true) THEN
    UPDATE dispatcher_process AS process
       SET idle_at = v_now, queues = p_queues
     WHERE process.id = (SELECT mine.id FROM dispatcher_process AS mine
                       WHERE mine.id = p_process FOR NO KEY UPDATE SKIP LOCKED);
    IF NOT FOUND THEN
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
  IF p_calls = '{}' AND p_becomes = 'dispatched' AND v_settled = 0 THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  at := v_now;
  RETURN NEXT;
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_take_a1ec3045 FROM PUBLIC;
