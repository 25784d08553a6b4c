-- lanes: lock the first `p_most` lanes at a place of each of these queues, in the ordered scan: who chooses first and
-- locks then mostly finds them taken. Returns these and those of `p_rows`, which the caller has locked, by a younger
-- snapshot, with all keys that a call of theirs spends: those that it names, then the queue's own, if it exists.
-- LIMIT 1 keeps a plan that was made while there were few lanes from reading all of them.
CREATE TYPE @lane AS (
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
    waits_from bigint,        -- no call of it waits before this position, but for those of notes that are not read
    taker text                -- who may take its calls: mine, published (by anyone) or others
);
CREATE FUNCTION @lanes(p_queues text[], p_place bigint, p_most int, p_rows tid[], p_taker text) RETURNS @lane[]
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
            site.place, site.served_at, site.last_served_at, site.kept_until, site.waits_from, p_taker)::@lane
      FROM dispatcher_lanesite AS site
     CROSS JOIN LATERAL (
           SELECT lane.id, lane.queue, lane.priority, lane.on_limit, lane.key_ids
             FROM dispatcher_lane AS lane
            WHERE lane.id = site.lane_id LIMIT 1) AS lane
     WHERE site.ctid = ANY (p_rows));
END $$;
