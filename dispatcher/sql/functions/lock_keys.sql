-- lock_keys: lock these keys, in order of id and without waiting, then count what they allow, by a snapshot that is
-- younger than the locks. Of a group the `p_most` members with most room, too: its room is theirs.
-- Returns the keys that are locked, what each allows, the groups among them or of them, those that another transaction
-- has locked, and whether lanes are parked on any; a group is busy, too, if a member of it is that had room. A key that
-- was to be blocked while another transaction had it locked is blocked, and counted again.
CREATE TYPE @group_room AS (id bigint, room bigint, fits bigint, best bigint[]);
CREATE FUNCTION @lock_keys(p_keys bigint[], p_known bigint[], p_worker uuid, p_most int, p_tuning @tuning,
    p_now timestamptz, OUT ids bigint[], OUT keys @key_room[], OUT groups bigint[], OUT busy bigint[],
    OUT is_parked bool)
LANGUAGE plpgsql AS $$
DECLARE
  v_groups @group_room[];
  v_members bigint[];                                -- their last start ranks them among the members of a group
  v_group @group_room;
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
     CROSS JOIN LATERAL unnest(CASE WHEN key.is_group THEN ARRAY[key.id] ELSE @groups_of(key.name) END) AS joined (id)
     WHERE key.id = ANY (ids);
  END IF;
  groups := COALESCE(groups, '{}');
  IF groups <> '{}' THEN
    -- Ranked before they are locked, and counted again after it: a mistake costs a look.
    SELECT array_agg((key.id, ranked.room, ranked.fits, ranked.best)::@group_room) INTO v_groups
      FROM dispatcher_ratelimitkey AS key
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(member.room) FILTER (WHERE member.is_open), 0) AS room, max(member.fits) AS fits,
                  (array_agg(member.id ORDER BY member.is_open AND member.own > 0 DESC, member.is_open DESC,
                             member.room DESC, member.last_at NULLS FIRST, member.id))[:p_most + 1] AS best
             FROM (SELECT member.id, member.room, member.fits, member.own, member.last_at,
                          member.room > 0 AND COALESCE(member.next_at <= p_now + p_tuning.horizon, true) AS is_open
                     FROM @room(@members_of(key.name), p_worker, p_now, p_tuning.margin, p_tuning.ramp) AS member)
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
    SELECT ARRAY(SELECT key FROM @room(ids, p_worker, p_now, p_tuning.margin, p_tuning.ramp) AS key),
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
