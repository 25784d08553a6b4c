-- line_up: what was looked at and waits for a fair key that is short, or beside others, stands in line at once, also
-- where all wait for a process: a lane that stays ready is locked by all that look at it, and a share is passed while
-- its lanes are. Who leaves a line without a start gets back what it has paid.
CREATE FUNCTION @line_up(p_found @found, p_keys @key_room[], p_served bigint[], p_moves @move[], p_open bigint[],
    p_seated bigint[], p_seats @seat[], p_lines @line[], p_over uuid[], p_until timestamptz,
    OUT moves @move[], OUT opened bigint[], OUT paid @line[]) LANGUAGE plpgsql AS $$
DECLARE
  v_lane record;
BEGIN
  moves := p_moves;
  opened := p_open;
  FOR v_lane IN
    SELECT lane.id, key.id AS key_id, seat.n, seat.line,
           @turn(COALESCE(head.cost, 1), (p_lines[seat.line]).weight) AS length
      FROM unnest(p_found.lanes) AS lane
     CROSS JOIN LATERAL (SELECT array_position(p_seated, lane.id) AS n) AS mine
     CROSS JOIN LATERAL (SELECT mine.n, (p_seats[mine.n]).line, (p_seats[mine.n]).cost_at) AS seat
      JOIN unnest(p_keys) AS key ON key.id = (p_lines[seat.line]).key_id
     CROSS JOIN LATERAL (
           SELECT call.key_costs[seat.cost_at] AS cost
             FROM dispatcher_callqueue AS call
            WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
              AND call.state = 'available' AND call.oversized_key_id IS NULL AND call.id <> ALL (p_over)
            ORDER BY call.position
            LIMIT 1) AS head
     WHERE (key.room <= 0 OR key.next_at > p_until OR key.id = ANY (p_found.turn_keys)
            OR EXISTS (SELECT FROM unnest(p_seats) WITH ORDINALITY AS other
                        WHERE (p_lines[other.line]).key_id = key.id AND other.ordinality <> seat.n))
       AND NOT EXISTS (SELECT FROM unnest(moves) AS move WHERE move.lane = lane.id)
     ORDER BY array_position(p_served, lane.id) NULLS FIRST, lane.served_at, lane.id
  LOOP
    IF p_seats[v_lane.n].turn IS NULL THEN
      p_seats[v_lane.n].turn := p_lines[v_lane.line].next;
      p_lines[v_lane.line].next := p_lines[v_lane.line].next + v_lane.length;
    END IF;
    moves := moves
      || (v_lane.id, v_lane.key_id, @turn_at(p_seats[v_lane.n].turn), NULL, NULL, true, NULL)::@move;
    opened := opened || v_lane.key_id;
  END LOOP;
  FOR v_lane IN
    SELECT seat.n, seat.line, seat.length
      FROM (SELECT n, (p_seats[n]).line, (p_seats[n]).length, (p_seats[n]).turn, p_seated[n] AS lane
              FROM generate_subscripts(p_seats, 1) AS n) AS seat
     WHERE seat.turn IS NOT NULL
       AND NOT EXISTS (SELECT FROM unnest(moves) AS move WHERE move.lane = seat.lane AND move.is_turn)
  LOOP
    p_lines[v_lane.line].next := p_lines[v_lane.line].next - v_lane.length;
  END LOOP;
  -- Shares pay only where somebody waits.
  paid := ARRAY(
    SELECT line FROM unnest(p_lines) AS line
     WHERE line.next <> line.was
       AND (line.key_id = ANY (p_found.turn_keys)
            OR EXISTS (SELECT FROM unnest(moves) AS move WHERE move.place = line.key_id AND move.is_turn)));
END $$;
