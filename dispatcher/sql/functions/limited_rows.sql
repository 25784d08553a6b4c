-- limited_rows: lock up to `p_most` lanes of these queues that wait since some worker holds as much of a key as one
-- may, the highest first; not those that this worker may not serve either. Relies on lanesite_place and slot_key.
CREATE FUNCTION @limited_rows(p_worker uuid, p_queues text[], p_most int, p_now timestamptz) RETURNS tid[]
LANGUAGE plpgsql AS $$
BEGIN
  RETURN (
    WITH reached AS MATERIALIZED (
      SELECT slot.key_id AS id
        FROM dispatcher_slot AS slot
        JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
       WHERE slot.worker_id = p_worker
       GROUP BY slot.key_id, key.id
      HAVING sum(slot.cost) >= CASE WHEN key.override_until > p_now THEN key.override_per_worker
                                    ELSE key.per_worker END
             AND NOT key.is_observed
    ), front AS MATERIALIZED (
      SELECT seen.row
        FROM unnest(p_queues) AS mine (name)
       CROSS JOIN LATERAL (
             SELECT site.ctid AS row, site.lane_id, site.priority, site.served_at
               FROM dispatcher_lanesite AS site
              WHERE site.place = -1 AND site.queue = mine.name
              ORDER BY site.priority DESC, site.served_at, site.lane_id
              LIMIT 50) AS seen
        JOIN dispatcher_lane AS lane ON lane.id = seen.lane_id
       WHERE NOT lane.key_ids && ARRAY(SELECT reached.id FROM reached)
       ORDER BY seen.priority DESC, seen.served_at, seen.lane_id
       LIMIT p_most
    ), mine AS (
      SELECT site.ctid AS row
        FROM dispatcher_lanesite AS site
       WHERE site.ctid = ANY (ARRAY(SELECT front.row FROM front))
         FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT array_agg(mine.row) FROM mine);
END $$;
