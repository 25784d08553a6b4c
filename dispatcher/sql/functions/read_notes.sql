-- read_notes: take over the notes that are due since `p_from`. Their sleeping lanes are ready now; parked ones are with
-- `is_forced`, or where a call may come before the one that is parked (it was sent earlier, and committed later). Calls
-- of a lane are looked for from the position of the note on. But up to `p_room` lanes of `p_queues` that sleep are
-- served by this trip as they are: one that then sleeps again need not be written.
-- Lanes are changed by their ids: a version that was written since the statement began is found by no ctid, and the
-- note would be gone in vain.
-- Returns the keys to look at; the queues of lanes that are ready now: who may serve them is not here, maybe; the rows
-- of lanes to serve, which are locked; and when to come again: at once, if more may be due; or soon, if other trips are
-- reading all that are due, or for a note whose lane another transaction has locked, which may be putting the lane to
-- sleep.
CREATE FUNCTION @read_notes(p_from timestamptz, p_now timestamptz, p_queues text[], p_room int, OUT keys bigint[],
    OUT queues text[], OUT rows tid[], OUT again_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
  v_over tid[];
  v_kept tid[];
  v_lanes bigint[];                                  -- those that are changed
  v_ready bool[];
  v_froms bigint[];
BEGIN
  WITH due AS MATERIALIZED (
    SELECT note.ctid AS row, note.lane_id, note.key_id, note.is_forced, note.position
      FROM dispatcher_note AS note
     WHERE note.at > p_from AND note.at <= p_now
     ORDER BY note.at
     LIMIT 100
       FOR UPDATE SKIP LOCKED
  ), mine AS MATERIALIZED (
    SELECT site.ctid AS row, site.lane_id, site.queue, site.priority, site.served_at, site.place, site.waits_from
      FROM dispatcher_lanesite AS site
     WHERE site.lane_id = ANY (ARRAY(SELECT due.lane_id FROM due WHERE due.lane_id IS NOT NULL))
       FOR NO KEY UPDATE SKIP LOCKED
  ), lane AS MATERIALIZED (
    SELECT mine.row, mine.lane_id, mine.queue, mine.priority, mine.served_at, noted.position, mine.waits_from,
           mine.place IS NULL
           OR (mine.place <> 0 AND (noted.is_forced OR noted.position < mine.waits_from)) AS is_ready,
           mine.place IS NULL AND noted.position >= mine.waits_from AND mine.queue = ANY (p_queues) AS may_be_served
      FROM mine
     CROSS JOIN LATERAL (
           SELECT min(due.position) AS position, bool_or(due.is_forced) AS is_forced
             FROM due
            WHERE due.lane_id = mine.lane_id) AS noted
  ), served AS MATERIALIZED (
    SELECT lane.row
      FROM lane
     WHERE lane.may_be_served
     ORDER BY lane.priority DESC, lane.served_at, lane.lane_id
     LIMIT p_room
  ), settled AS MATERIALIZED (
    SELECT due.row,
           due.lane_id IS NULL OR due.lane_id IN (SELECT mine.lane_id FROM mine)
           OR NOT EXISTS (SELECT FROM dispatcher_lanesite AS site WHERE site.lane_id = due.lane_id) AS is_over
      FROM due
  )
  SELECT ARRAY(SELECT DISTINCT due.key_id FROM due WHERE due.key_id IS NOT NULL),
         ARRAY(SELECT served.row FROM served), array_agg(lane.lane_id), array_agg(lane.is_ready),
         array_agg(LEAST(lane.waits_from, lane.position)),
         COALESCE(array_agg(DISTINCT lane.queue) FILTER (WHERE lane.is_ready), '{}'),
         ARRAY(SELECT settled.row FROM settled WHERE settled.is_over),
         ARRAY(SELECT settled.row FROM settled WHERE NOT settled.is_over),
         CASE (SELECT count(*) FROM due) WHEN 100 THEN p_now WHEN 0 THEN p_now + interval '20 milliseconds' END
    INTO keys, rows, v_lanes, v_ready, v_froms, queues, v_over, v_kept, again_at
    FROM lane
   WHERE (lane.is_ready OR lane.position < lane.waits_from) AND lane.row NOT IN (SELECT served.row FROM served);

  DELETE FROM dispatcher_note AS note WHERE note.ctid = ANY (v_over);
  IF v_kept <> '{}' THEN
    UPDATE dispatcher_note AS note SET at = p_now + interval '20 milliseconds' WHERE note.ctid = ANY (v_kept);
    again_at := COALESCE(again_at, p_now + interval '20 milliseconds');
  END IF;
  IF v_lanes IS NOT NULL THEN
    UPDATE dispatcher_lanesite AS site
       SET place = CASE WHEN lane.is_ready THEN 0 ELSE site.place END, waits_from = lane.waits_from,
           served_at = CASE WHEN lane.is_ready THEN COALESCE(site.last_served_at, site.served_at)
                            ELSE site.served_at END
      FROM unnest(v_lanes, v_ready, v_froms) AS lane (id, is_ready, waits_from)
     WHERE site.lane_id = ANY (v_lanes) AND site.lane_id = lane.id;
  END IF;
END $$;
