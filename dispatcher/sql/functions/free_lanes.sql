-- free_lanes: make as many of the lanes parked on a key ready as it has room for, of each queue; not those in `p_not`.
-- Returns the queue of each, and whether a queue has lanes left that another transaction has locked: the room may have
-- come for them.
CREATE FUNCTION @free_lanes(p_key bigint, p_room bigint, p_not bigint[], OUT queues text[], OUT is_short bool)
LANGUAGE plpgsql AS $$
DECLARE
  v_parked text[] := @parked_queues(p_key);
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
