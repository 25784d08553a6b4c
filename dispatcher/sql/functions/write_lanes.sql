-- write_lanes: where the lanes that a trip has looked at are now, when they were served, and from where on their calls
-- wait. A lane that is served alone keeps its turn, and is written now and then: an old snapshot keeps each version.
CREATE TYPE @site AS (
    row tid,
    place bigint,
    served_at timestamptz,
    last_served_at timestamptz,
    kept_until timestamptz,
    waits_from bigint
);
CREATE FUNCTION @write_lanes(p_found @found, p_chosen @chosen, p_queues text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_sites @site[];
BEGIN
  v_sites := ARRAY(
    SELECT (lane.row, site.place, COALESCE(site.served_at, site.last_served_at),
            CASE WHEN site.is_turn THEN site.last_served_at END, site.kept_until, site.waits_from)::@site
      FROM unnest(p_found.lanes) AS lane
     CROSS JOIN LATERAL (
           SELECT move.served_at, move.is_turn, move.kept_until, turn.turn,
                  COALESCE(p_found.now + turn.turn * interval '1 microsecond', lane.last_served_at, lane.served_at)
                  AS last_served_at,
                  CASE WHEN move.lane IS NOT NULL THEN move.place WHEN first.position IS NOT NULL THEN 0 END AS place,
                  COALESCE(first.position,
                           (SELECT max(call.position) + 1 FROM dispatcher_callqueue AS call
                             -- By their ids: a plan made on small tables would read all calls of the lane.
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
