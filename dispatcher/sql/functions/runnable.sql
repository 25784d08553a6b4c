-- runnable: how many calls of a queue could start now if a process were free, up to `p_most`: those that no limit
-- holds. What an autoscaler looks at, so it must be right where no process looks at anything. `since`: when the oldest
-- of them was sent, or became due; each lane's first one is looked at. `active`: how many of the queue run.
-- Counted are the calls that are on their way to a worker; then, lane by lane in the order of their turns, those that
-- the room of their keys allows, which the lanes before have left. A lane costs a few probes of an index and its keys'
-- room, a call one entry of an index: the backlog and parked lanes cost nothing. Lanes are found where a trip would
-- find them: ready, noted, parked on a key that is noted or keeps room for the queue, or with calls that are due.
-- Of each kind the first 1,000 are looked at, of notes the first 10,000: any trip of any queue reads all of them, so
-- more are there only where nothing runs.
-- All calls of a lane are taken to cost as much as its first one, and a limit per worker holds none: the next worker
-- may be another one. Room that queues share is counted for each of them.
-- Relies on lanesite_place, lanesite_kept, lanesite_lane, note_at, call_waiting, call_in_flight and call_due_queue.
CREATE FUNCTION @runnable(p_queue text, p_most int, p_horizon interval, p_margin interval, p_ramp interval,
    p_now timestamptz, OUT calls int, OUT since timestamptz, OUT active int)
LANGUAGE plpgsql STABLE SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off'
SET search_path FROM CURRENT AS $$
DECLARE
  v_own bigint := (SELECT key.id FROM dispatcher_ratelimitkey AS key WHERE key.name = 'queue:' || p_queue);
  v_ids bigint[] := '{}';                            -- keys, and what is left of each
  v_left bigint[] := '{}';
  v_want bigint[];                                   -- apart: room of a subquery would be planned each time
  v_new record;
  v_lane record;
  v_head record;
  v_count int;
BEGIN
  IF (SELECT stored.delivery FROM dispatcher_queue AS stored WHERE stored.name = p_queue) = 'http' THEN
    p_horizon := '0';                                -- such a worker does not wait for a start
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
       CROSS JOIN LATERAL unnest(@groups_of(key.name)) AS joined (id)
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
      FROM (SELECT key.id, LEAST(@room_now(key, p_horizon, p_now),
                                 CASE WHEN key.is_group THEN (
                                   SELECT COALESCE(sum(@room_now(member, p_horizon, p_now)), 0)
                                     FROM @room(@members_of(key.name), NULL, p_now, p_margin, p_ramp) AS member) END
                                 ) AS room
              FROM @room(v_want, NULL, p_now, p_margin, p_ramp) AS key) AS key;
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
