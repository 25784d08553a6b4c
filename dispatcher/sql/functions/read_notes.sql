-- read_notes: take over the notes that are due. Their sleeping lanes are ready now, with `is_forced` parked ones, too.
-- Lanes are changed by their ids: a version that was written since the statement began is found by no ctid, and the
-- note would be gone in vain.
-- Returns the keys to look at, and the queues of these lanes: who may serve them is not here, maybe; and when to come
-- again: at once, if more may be due; or soon, if other trips are reading all that are due, or for a note whose lane
-- another transaction has locked, which may be putting the lane to sleep.
CREATE FUNCTION @read_notes(p_now timestamptz, OUT keys bigint[], OUT queues text[], OUT again_at timestamptz)
LANGUAGE plpgsql AS $$
BEGIN
  WITH due AS MATERIALIZED (
    SELECT note.ctid AS row, note.lane_id, note.key_id, note.is_forced
      FROM dispatcher_note AS note
     WHERE note.at <= p_now
     ORDER BY note.at
     LIMIT 100
       FOR UPDATE SKIP LOCKED
  ), mine AS MATERIALIZED (
    SELECT site.lane_id, site.place
      FROM dispatcher_lanesite AS site
     WHERE site.lane_id = ANY (ARRAY(SELECT due.lane_id FROM due WHERE due.lane_id IS NOT NULL))
       FOR NO KEY UPDATE SKIP LOCKED
  ), ready AS (
    UPDATE dispatcher_lanesite AS site
       SET place = 0, served_at = COALESCE(site.last_served_at, site.served_at)
     WHERE site.lane_id = ANY (ARRAY(
             SELECT mine.lane_id
               FROM mine
              WHERE mine.place IS NULL
                 OR (mine.place <> 0 AND EXISTS (SELECT FROM due WHERE due.lane_id = mine.lane_id AND due.is_forced))))
    RETURNING site.queue
  ), settled AS MATERIALIZED (
    SELECT due.row, due.key_id,
           due.lane_id IS NULL OR due.lane_id IN (SELECT mine.lane_id FROM mine)
           OR NOT EXISTS (SELECT FROM dispatcher_lanesite AS site WHERE site.lane_id = due.lane_id) AS is_over
      FROM due
  ), read AS (
    DELETE FROM dispatcher_note AS note
     WHERE note.ctid = ANY (ARRAY(SELECT settled.row FROM settled WHERE settled.is_over))
  ), kept AS (
    UPDATE dispatcher_note AS note
       SET at = p_now + interval '20 milliseconds'
     WHERE note.ctid = ANY (ARRAY(SELECT settled.row FROM settled WHERE NOT settled.is_over))
  )
  SELECT ARRAY(SELECT DISTINCT settled.key_id FROM settled WHERE settled.key_id IS NOT NULL),
         ARRAY(SELECT DISTINCT ready.queue FROM ready),
         CASE WHEN (SELECT count(*) FROM due) = 100 THEN p_now
              WHEN NOT EXISTS (SELECT FROM due) OR EXISTS (SELECT FROM settled WHERE NOT settled.is_over)
              THEN p_now + interval '20 milliseconds' END
    INTO keys, queues, again_at;
END $$;
