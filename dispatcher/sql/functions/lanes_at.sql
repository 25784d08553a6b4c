-- lanes_at: the lanes of these rows of dispatcher_lanesite, which the caller has locked, with all keys that a call of
-- theirs spends: those that it names, then the queue's own, if it exists. Relies on the index of key names.
-- OFFSET 0 and LIMIT 1 keep a plan that was made while there were few lanes from reading all of them.
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
CREATE FUNCTION @lanes_at(p_rows tid[], p_taker text) RETURNS @lane[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT array_agg((lane.id, site.ctid, lane.queue, lane.priority, lane.on_limit,
                      array_remove(lane.key_ids || own.id, NULL), site.place, site.served_at, site.last_served_at,
                      site.kept_until, site.waits_from, p_taker)::@lane)
      FROM (SELECT site.ctid, site.lane_id, site.place, site.served_at, site.last_served_at, site.kept_until,
                   site.waits_from
              FROM dispatcher_lanesite AS site
             WHERE site.ctid = ANY (p_rows) OFFSET 0) AS site
     CROSS JOIN LATERAL (
           SELECT lane.id, lane.queue, lane.priority, lane.on_limit, lane.key_ids
             FROM dispatcher_lane AS lane
            WHERE lane.id = site.lane_id LIMIT 1) AS lane
      LEFT JOIN LATERAL (
           SELECT own.id
             FROM dispatcher_ratelimitkey AS own
            WHERE own.name = 'queue:' || lane.queue AND own.id <> ALL (lane.key_ids) LIMIT 1) AS own ON true);
END $$;
