-- rounds: in which order these lanes' first calls come: how far the turn of each is behind the first turn of its key,
-- as if a call of another lane came after each start of cost 1. The turn of a lane in line is that of its first call;
-- the others follow where their shares are, but never before it: a share may have got something back meanwhile. Lanes
-- that come new are before those in line with the same turn. `p_one_by_one`: only the first of all is asked for.
CREATE FUNCTION @rounds(p_lanes bigint[], p_seats @seat[], p_lines @line[], p_met bigint[], p_done bigint[],
    p_over uuid[], p_one_by_one bool, OUT calls uuid[], OUT rounds bigint[]) LANGUAGE plpgsql STABLE AS $$
BEGIN
  WITH head AS (
    SELECT lane.id AS lane, lane.line, lane.turn, lane.first, lane.served_at, call.id, met.n + call.n AS n,
           lane.turn IS NOT NULL AND call.n = 1 AS is_in_line, (lane.length IS NULL)::int AS is_new, line.next,
           @turn(COALESCE(call.key_costs[lane.cost_at], 1), line.weight) AS length
      FROM (SELECT seated.id, (p_seats[seated.n]).* FROM unnest(p_lanes) WITH ORDINALITY AS seated (id, n)) AS lane
     CROSS JOIN LATERAL (SELECT (p_lines[lane.line]).next, (p_lines[lane.line]).weight) AS line
     CROSS JOIN LATERAL (SELECT cardinality(array_positions(p_met, lane.id)) AS n) AS met
     CROSS JOIN LATERAL (
           SELECT call.id, call.key_costs, row_number() OVER () AS n
             FROM (SELECT call.id, call.key_costs
                     FROM dispatcher_callqueue AS call
                    WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
                      AND call.state = 'available' AND call.oversized_key_id IS NULL AND call.id <> ALL (p_over)
                    ORDER BY call.position
                    LIMIT lane.heads) AS call) AS call
     WHERE lane.id <> ALL (p_done))
  SELECT array_agg(turn.id), array_agg(turn.at - turn.first + @turn(1, 1))
    INTO calls, rounds
    FROM (SELECT each.id, each.first, max(each.at) OVER (PARTITION BY each.lane ORDER BY each.n) AS at
            FROM (SELECT head.id, head.first, head.lane, head.n,
                         CASE WHEN head.is_in_line THEN head.turn
                              ELSE head.next - head.is_new - head.length + sum(head.length) OVER (
                                     PARTITION BY head.line, head.is_in_line, CASE WHEN p_one_by_one THEN head.lane END
                                         ORDER BY head.n, head.served_at, head.lane) END::bigint AS at
                    FROM head) AS each) AS turn;
END $$;
