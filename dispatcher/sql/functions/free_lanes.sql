-- free_lanes: make as many of the lanes parked on a key ready as it has room for, of each queue; not those in `p_not`.
-- Returns their queues, and whether lanes are left that another transaction has locked: the room may have come for
-- them.
CREATE FUNCTION @free_lanes(p_key bigint, p_room bigint, p_not bigint[], OUT queues text[], OUT is_short bool)
LANGUAGE plpgsql AS $$
DECLARE
  v_count int;
BEGIN
  WITH freed AS (
    UPDATE dispatcher_lanesite AS site
       SET place = 0, kept_until = NULL, served_at = COALESCE(site.last_served_at, site.served_at)
     WHERE site.ctid = ANY (ARRAY(
             SELECT front.row
               FROM unnest(@parked_queues(p_key)) AS turn (queue)
              CROSS JOIN LATERAL (
                    SELECT site.ctid AS row
                      FROM dispatcher_lanesite AS site
                     WHERE site.place = p_key AND site.queue = turn.queue AND site.lane_id <> ALL (p_not)
                     ORDER BY site.priority DESC, site.served_at, site.lane_id
                     LIMIT LEAST(p_room, 20)
                       FOR NO KEY UPDATE SKIP LOCKED) AS front))
    RETURNING site.queue
  )
  SELECT COALESCE(array_agg(DISTINCT freed.queue), '{}'), count(*) INTO queues, v_count FROM freed;
  is_short := v_count < LEAST(p_room, 20)
              AND (SELECT site.lane_id FROM dispatcher_lanesite AS site
                    WHERE site.place = p_key AND site.lane_id <> ALL (p_not) LIMIT 1) IS NOT NULL;
END $$;
