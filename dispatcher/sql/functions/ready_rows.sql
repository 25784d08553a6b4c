-- ready_rows: lock up to `p_most` lanes of each queue that are ready, in the order in which they are served; those that
-- another transaction has locked are skipped. Locked in the ordered scan: who chooses first and locks then mostly finds
-- them taken. Relies on lanesite_place.
CREATE FUNCTION @ready_rows(p_queues text[], p_most int) RETURNS tid[] LANGUAGE plpgsql AS $$
BEGIN
  RETURN (
    SELECT array_agg(front.row)
      FROM unnest(p_queues) AS mine (name)
     CROSS JOIN LATERAL (
           SELECT site.ctid AS row
             FROM dispatcher_lanesite AS site
            WHERE site.place = 0 AND site.queue = mine.name
            ORDER BY site.priority DESC, site.served_at, site.lane_id
            LIMIT p_most
              FOR NO KEY UPDATE SKIP LOCKED) AS front);
END $$;
