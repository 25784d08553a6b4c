-- show_lanes: have workers look at a fair key that has room left: their lanes keep their turns there. Room of it is
-- kept for the first of each queue that is parked on it, until now: who serves the queue finds the key by that.
-- Returns the queues, and whether another transaction has locked all of these lanes.
CREATE FUNCTION @show_lanes(p_key bigint, p_now timestamptz, OUT queues text[], OUT is_short bool)
LANGUAGE plpgsql AS $$
BEGIN
  queues := @parked_queues(p_key);
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
