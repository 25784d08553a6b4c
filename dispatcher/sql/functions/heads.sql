-- heads: the first calls of lanes that were found, locked, in the order in which they are to start: by priority, then
-- one call of each lane in turn, the lane for which room was kept first, then the least recently served. With
-- `p_is_strict` queues are served in their order; with `p_stride` the queue that is due by its weight comes first.
-- `p_met`: the lanes of the calls that are decided; `p_over`: these calls; `p_done`: lanes that are settled.
CREATE TYPE @head AS (
    call uuid,
    key_costs int[],
    fate text,                -- what becomes of it in place of a start
    turn bigint,              -- its number among those of its lane
    lane int,                 -- its lane, as an index of those that were found
    tier bigint,              -- strictly before all of a higher tier
    round bigint
);
CREATE FUNCTION @heads(p_found @found, p_queues text[], p_tasks text[], p_becomes text, p_most int, p_seats @seat[],
    p_seated bigint[], p_ranked uuid[], p_rounds bigint[], p_met bigint[], p_done bigint[], p_over uuid[],
    p_due bigint[], p_stride bigint[], p_is_strict bool) RETURNS @head[] LANGUAGE plpgsql AS $$
DECLARE
  v_heads @head[];
BEGIN
  v_heads := ARRAY(
    SELECT (head.id, head.key_costs, head.fate, head.turn, lane.n, line.tier, line.round)::@head
      FROM unnest(p_found.lanes) WITH ORDINALITY AS lane (id, row, queue, priority, on_limit, key_ids, place, served_at,
                                                          last_served_at, kept_until, waits_from, taker, n)
     CROSS JOIN LATERAL (
           SELECT call.id, call.key_costs, row_number() OVER () AS turn,
                  CASE WHEN call.is_revoked THEN 'cancelled'
                       WHEN call.expires_at <= p_found.now THEN 'expired'
                       WHEN lane.taker = 'mine' AND p_becomes = 'active' AND call.task <> ALL (p_tasks) THEN 'unknown'
                  END AS fate
             FROM (SELECT call.id, call.key_costs, call.is_revoked, call.expires_at, call.task
                     FROM dispatcher_callqueue AS call
                    WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
                      AND call.state = 'available' AND call.oversized_key_id IS NULL AND call.id <> ALL (p_over)
                    ORDER BY call.position
                    LIMIT COALESCE(p_seats[array_position(p_seated, lane.id)].heads, p_most)
                      FOR NO KEY UPDATE SKIP LOCKED) AS call) AS head
     CROSS JOIN LATERAL (
           SELECT COALESCE(CASE WHEN p_is_strict THEN array_position(p_queues, lane.queue) END, 1)::bigint * 65536
                  - lane.priority AS tier,
                  COALESCE(p_rounds[array_position(p_ranked, head.id)],
                           100000 * (head.turn + cardinality(array_positions(p_met, lane.id)))) AS round,
                  -- In line served_at is a turn (see shares), and room was only shown where it is not kept still.
                  CASE WHEN lane.taker = 'mine' AND isfinite(lane.kept_until)
                        AND (lane.last_served_at IS NULL OR lane.kept_until > p_found.now)
                       THEN '-infinity' ELSE COALESCE(lane.last_served_at, lane.served_at) END AS at) AS line
     WHERE lane.id <> ALL (p_done)
     ORDER BY line.tier, line.round, line.at, lane.id, head.turn);
  IF p_stride IS NOT NULL THEN
    v_heads := ARRAY(
      SELECT v_heads[ranked.n]
        FROM (SELECT head.n, head.tier, head.round, mine.queue,
                     row_number() OVER (PARTITION BY (p_found.lanes[head.lane]).queue ORDER BY head.n) AS nth
                FROM unnest(v_heads) WITH ORDINALITY AS head (call, key_costs, fate, turn, lane, tier, round, n)
               CROSS JOIN LATERAL (
                     SELECT array_position(p_queues, (p_found.lanes[head.lane]).queue) AS queue) AS mine) AS ranked
       ORDER BY ranked.tier, p_due[ranked.queue] + p_stride[ranked.queue] * ranked.nth NULLS FIRST, ranked.round,
                ranked.queue NULLS FIRST, ranked.n);
  END IF;
  RETURN v_heads;
END $$;
