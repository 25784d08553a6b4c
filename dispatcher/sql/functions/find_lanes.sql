-- find_lanes: lock the lanes that a trip may serve, and their keys, and count what these allow. First the ready lanes
-- of the worker's queues; then those that are parked on keys with room, of its own queues, of queues that are
-- published, and of those for which another worker may come. `p_delivery`: how its own queues are delivered.
-- `p_open`: keys to look at, whatever the lanes.
-- What another transaction has locked is skipped. Only where all that is ready is locked, it waits, for lock_timeout at
-- most: without any wait eight connections on one key start half as much, and four trips of five in vain.
CREATE TYPE @found AS (
    now timestamptz,          -- the time after the locks
    since timestamptz,        -- the time before them: what is closed by the count opens later than that
    open bigint[],            -- the keys that were to be looked at, and groups of them
    busy bigint[],            -- keys that another transaction has locked
    ids bigint[],             -- keys that are locked
    keys @key_room[],         -- what each of these allows
    lanes @lane[],
    is_parked bool,           -- whether lanes are parked on keys that are locked
    turn_keys bigint[],       -- those of these keys that have room
    published text[],         -- queues whose calls may be published, and how many
    publish_room int[],
    full_queues text[],       -- own queues that have no room: their calls are left to the ends of those on their way
    queues text[],            -- those of lanes that notes have made ready
    again_at timestamptz
);
CREATE FUNCTION @find_lanes(p_worker uuid, p_queues text[], p_delivery text, p_room int, p_publish int, p_open bigint[],
    p_tuning @tuning, p_now timestamptz) RETURNS @found LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := COALESCE(p_now, clock_timestamp());
  v_since timestamptz := v_now;
  v_queues text[];
  v_is_noted bool;
  v_open bigint[] := p_open;
  v_want bigint[];                                   -- keys to lock
  v_busy bigint[] := '{}';
  v_ids bigint[] := '{}';
  v_keys @key_room[] := '{}';
  v_lanes @lane[] := '{}';
  v_lane @lane;
  v_rows tid[] := '{}';                              -- lanes that are noted, and slept; and those that are limited
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
  v_is_fair bool := false;                           -- more lanes were looked at
  v_other record;
  v_left int;
  v_locked record;
BEGIN
  SELECT ARRAY(SELECT mine.name                      -- not those that are delivered in another way by now
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
      FROM (SELECT mine.name, @queue_room(mine.name, p_room, p_tuning, v_now) AS room
              FROM unnest(v_queues) AS mine (name)) AS queue;
    v_queues := v_published;
  END IF;

  IF v_is_noted THEN
    v_noted := @read_notes(v_from, v_now, v_queues, p_room);
    v_open := v_open || v_noted.keys;
    v_rows := v_noted.rows;
    v_noted_queues := v_noted.queues;
    v_again_at := v_noted.again_at;
  END IF;

  IF v_queues <> '{}' THEN                           -- apart, those that only a worker with room of its own may serve
    IF v_has_limited THEN v_rows := v_rows || @limited_rows(p_worker, v_queues, p_room, v_now); END IF;
    v_lanes := @lanes(v_queues, 0, p_room, v_rows, 'mine');
    IF v_lanes = '{}' THEN
      IF (SELECT site.lane_id FROM dispatcher_lanesite AS site
           WHERE site.place = 0 AND site.queue = ANY (v_queues) LIMIT 1) IS NOT NULL THEN
        BEGIN                                        -- others have locked all that is ready: wait for one
          PERFORM FROM dispatcher_lanesite AS site
            WHERE site.place = 0 AND site.queue = ANY (v_queues)
            ORDER BY site.queue, site.priority DESC, site.served_at, site.lane_id
            LIMIT 1
              FOR NO KEY UPDATE;
          v_lanes := @lanes(v_queues, 0, p_room, '{}', 'mine');
        EXCEPTION WHEN lock_not_available THEN
          NULL;
        END;
      END IF;
    END IF;
  END IF;
  v_now := COALESCE(p_now, clock_timestamp());        -- who has waited for a lane starts after who had it
  IF v_has_kept THEN
    -- Room may be kept for a lane of these queues: it is first on that key. Its place is looked at apart: a plan that
    -- was made while there were few lanes would read all that are parked.
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
      v_locked := @lock_keys(v_want, v_ids, p_worker, p_room + p_publish, p_tuning, v_now);
      IF v_locked.busy <> '{}' THEN
        IF NOT EXISTS (SELECT FROM unnest(v_lanes) AS lane WHERE NOT lane.key_ids && v_locked.busy) THEN
          RAISE lock_not_available;
        END IF;
      END IF;
    EXCEPTION WHEN lock_not_available THEN
      -- Locked keys stop every lane. Let go of the others, and wait for all in order of id: who has the locked ones may
      -- wait for these.
      BEGIN
        PERFORM FROM dispatcher_ratelimitkey AS key
          WHERE key.id = ANY (v_want) AND key.id <> ALL (v_ids) ORDER BY key.id FOR NO KEY UPDATE;
      EXCEPTION WHEN lock_not_available THEN
        NULL;
      END;
      v_locked := @lock_keys(v_want, v_ids, p_worker, p_room + p_publish, p_tuning, v_now);
    END;
    v_now := COALESCE(p_now, clock_timestamp());
    v_keys := v_keys || v_locked.keys;
    v_ids := v_ids || v_locked.ids;
    v_busy := v_busy || v_locked.busy;
    v_open := v_open || v_locked.groups;
    EXIT WHEN v_round = 2;
    IF cardinality(v_lanes) >= p_room THEN           -- others may be ready: they are to stand in line, too
      FOR k IN 1 .. cardinality(v_locked.ids) LOOP
        CONTINUE WHEN v_locked.keys[k].fair_by IS NULL;
        v_is_fair := true;
        v_lanes := @lanes(v_queues, 0, p_room + 50, v_rows, 'mine');
        EXIT;
      END LOOP;
    END IF;
    IF v_has_kept THEN
      -- Kept in vain, and its workers come now, when the key has no room: it is kept again, when its turn comes.
      v_lanes := v_lanes || @lanes('{}', 0, 0, ARRAY(
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
    -- As many of the lanes parked on keys with room as there is room for.
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
        v_left := @queue_room(v_other.queue, p_publish, p_tuning, v_now);
        CONTINUE WHEN COALESCE(v_left, 0) = 0;
        v_published := v_published || v_other.queue;
        v_publish_room := v_publish_room || v_left;
      END IF;
      v_lanes := v_lanes || @lanes(ARRAY[v_other.queue], v_other.key_id, v_other.most, '{}', v_other.taker);
    END LOOP;
    v_want := ARRAY(SELECT DISTINCT spent.id FROM unnest(v_lanes) AS lane, unnest(lane.key_ids) AS spent (id)
                     WHERE spent.id <> ALL (v_ids || v_busy));
  END LOOP;
  RETURN (v_now, v_since, v_open, v_busy, v_ids, v_keys, v_lanes, v_is_parked, v_turn_keys, v_published,
          v_publish_room, v_full, v_noted_queues, v_again_at);
END $$;
