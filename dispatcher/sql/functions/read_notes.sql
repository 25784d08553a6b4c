-- read_notes: take over the notes that are due. Their sleeping lanes are ready now, with `is_forced` parked ones, too;
-- and their calls are looked for from the position on that the note says.
-- Lanes are changed by their ids: a version that was written since the statement began is found by no ctid, and the
-- note would be gone in vain.
-- Returns the keys to look at, and the queues of these lanes: who may serve them is not here, maybe; and when to come
-- again: at once, if more may be due; or soon for a note whose lane another transaction has locked, which may be
-- putting the lane to sleep.
CREATE FUNCTION @read_notes(p_now timestamptz, OUT keys bigint[], OUT queues text[], OUT again_at timestamptz)
LANGUAGE plpgsql AS $$
BEGIN
  WITH due AS MATERIALIZED (
    SELECT note.ctid AS row, note.lane_id, note.key_id, note.is_forced, COALESCE(note.waits_from, 0) AS waits_from
      FROM dispatcher_note AS note
     WHERE note.at <= p_now
     ORDER BY note.at
     LIMIT 100
       FOR UPDATE SKIP LOCKED
  ), mine AS MATERIALIZED (
    SELECT site.lane_id, site.place, site.waits_from
      FROM dispatcher_lanesite AS site
     WHERE site.lane_id = ANY (ARRAY(SELECT due.lane_id FROM due WHERE due.lane_id IS NOT NULL))
       FOR NO KEY UPDATE SKIP LOCKED
  ), changed AS MATERIALIZED (
    SELECT mine.lane_id, mine.place IS NULL OR (mine.place <> 0 AND bool_or(due.is_forced)) AS is_ready,
           LEAST(mine.waits_from, min(due.waits_from)) AS waits_from
      FROM mine
      JOIN due ON due.lane_id = mine.lane_id
     GROUP BY mine.lane_id, mine.place, mine.waits_from
    HAVING mine.place IS NULL OR (mine.place <> 0 AND bool_or(due.is_forced)) OR min(due.waits_from) < mine.waits_from
  ), ready AS (
    UPDATE dispatcher_lanesite AS site
       SET place = CASE WHEN changed.is_ready THEN 0 ELSE site.place END, waits_from = changed.waits_from
      FROM changed
     WHERE site.lane_id = ANY (ARRAY(SELECT changed.lane_id FROM changed)) AND site.lane_id = changed.lane_id
    RETURNING site.queue, changed.is_ready
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
         ARRAY(SELECT DISTINCT ready.queue FROM ready WHERE ready.is_ready),
         CASE WHEN (SELECT count(*) FROM due) = 100 THEN p_now
              WHEN EXISTS (SELECT FROM settled WHERE NOT settled.is_over) THEN p_now + interval '20 milliseconds' END
    INTO keys, queues, again_at;
END $$;
