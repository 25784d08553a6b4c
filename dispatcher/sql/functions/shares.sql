-- shares: which of these lanes take turns by share, on which key, and where the shares are. A key that says fair_by
-- gives its turns to shares: each lane belongs to that of the key of its calls whose name begins so, the first by name;
-- lanes without such a key are one share (0) together. Of two fair keys of a lane the first by name counts. Calls that
-- do not wait at a limit take no turns.
-- Start-time fair queueing: the line of a share holds the turn that its next lane gets, `next`; that lane's start costs
-- the share its length, cost by weight. The key has a clock of each priority (share -1), the turn that started last:
-- who comes new begins there, so a share without calls saves up nothing. One that stands in line and was passed, since
-- its queue had no worker free, keeps its turns, 100 starts at the most. `p_ids`: the keys that are locked.
CREATE TYPE @line AS (key_id bigint, priority smallint, share_id bigint, weight int, next bigint, was bigint);
CREATE TYPE @seat AS (
    line int,                 -- the line of its share, and the key's clock
    clock int,
    cost_at int,              -- the key among those that its calls spend
    heads int,                -- how many of its calls are looked at
    turn bigint,              -- its turn, if it stands in line
    length bigint,            -- what its share has paid for that
    first bigint,             -- the first turn of all lanes that were found
    served_at timestamptz,
    waits_from bigint
);
CREATE FUNCTION @shares(p_lanes @lane[], p_ids bigint[], p_room int, OUT lanes bigint[], OUT seats @seat[],
    OUT lines @line[]) LANGUAGE plpgsql STABLE AS $$
BEGIN
  WITH key AS MATERIALIZED (
    SELECT key.id, key.name, key.fair_by, key.weight
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT unnest(lane.key_ids) FROM unnest(p_lanes) AS lane))
  ), mine AS MATERIALIZED (
    SELECT lane.id, lane.priority, lane.served_at, lane.waits_from, fair.id AS key_id,
           COALESCE(share.id, 0) AS share_id, COALESCE(share.weight, 1) AS weight,
           array_position(lane.key_ids, fair.id) AS cost_at,
           CASE WHEN lane.place = fair.id AND lane.last_served_at IS NOT NULL
                THEN (extract(epoch FROM lane.served_at) * 1000000)::bigint END AS turn,
           CASE WHEN lane.last_served_at IS NOT NULL
                THEN @turn(COALESCE((SELECT call.key_costs[array_position(lane.key_ids, fair.id)]
                                       FROM dispatcher_callqueue AS call
                                      WHERE call.lane_id = lane.id AND call.position >= lane.waits_from
                                        AND call.state = 'available' AND call.oversized_key_id IS NULL
                                      ORDER BY call.position
                                      LIMIT 1), 1), COALESCE(share.weight, 1)) END AS length
      FROM unnest(p_lanes) AS lane
     CROSS JOIN LATERAL (
           SELECT key.id, key.fair_by
             FROM key
            WHERE key.id = ANY (lane.key_ids) AND key.fair_by IS NOT NULL
            ORDER BY key.name COLLATE "C"
            LIMIT 1) AS fair
      LEFT JOIN LATERAL (
           SELECT key.id, key.weight
             FROM key
            WHERE key.id = ANY (lane.key_ids) AND key.id <> fair.id
              AND starts_with(key.name, rtrim(fair.fair_by, '*'))
            ORDER BY key.name COLLATE "C"
            LIMIT 1) AS share ON true
     WHERE fair.id = ANY (p_ids) AND lane.on_limit = 'wait'
  ), line AS MATERIALIZED (
    SELECT one.key_id, one.priority, one.share_id, one.weight, one.lanes,
           COALESCE(clock.next, 7258118400000000) AS clock,
           -- Who has paid for a turn, and has left the line without a start, gets it back.
           GREATEST(COALESCE(clock.next, 7258118400000000)
                    - CASE WHEN one.is_in_line AND stored.next IS NOT NULL THEN @turn(100, 1) ELSE 0 END,
                    stored.next - one.paid) AS next,
           row_number() OVER (ORDER BY one.key_id, one.priority, one.share_id) AS n
      FROM (SELECT mine.key_id, mine.priority, mine.share_id, mine.weight, count(*) AS lanes,
                   COALESCE(sum(mine.length) FILTER (WHERE mine.turn IS NULL), 0)::bigint AS paid,
                   bool_or(mine.turn IS NOT NULL) AS is_in_line
              FROM mine
             GROUP BY mine.key_id, mine.priority, mine.share_id, mine.weight
             UNION ALL
            SELECT DISTINCT mine.key_id, mine.priority, -1, 0, 0, 0, false FROM mine) AS one
      LEFT JOIN LATERAL (
           SELECT share.next FROM dispatcher_share AS share
            WHERE share.key_id = one.key_id AND share.priority = one.priority AND share.share_id = one.share_id
            LIMIT 1) AS stored ON true
      LEFT JOIN LATERAL (
           SELECT share.next FROM dispatcher_share AS share
            WHERE share.key_id = one.key_id AND share.priority = one.priority AND share.share_id = -1
            LIMIT 1) AS clock ON true
  )
  SELECT (SELECT array_agg((line.key_id, line.priority, line.share_id, line.weight, line.next, line.next)::@line
                           ORDER BY line.n) FROM line),
         array_agg(seat.id),
         array_agg((seat.line, seat.clock, seat.cost_at, seat.heads, seat.turn, seat.length, seat.first,
                    seat.served_at, seat.waits_from)::@seat)
    INTO lines, lanes, seats
    FROM (SELECT mine.id, line.n AS line, clock.n AS clock, mine.cost_at, mine.turn, mine.served_at,
                 mine.waits_from,
                 CASE WHEN mine.turn IS NOT NULL THEN mine.length END AS length,
                 ceil(p_room * line.weight::float8 / (sum(line.weight::float8 / line.lanes) OVER rivals)
                      / line.lanes)::int + 1 AS heads,
                 min(COALESCE(mine.turn, line.next - 1)) OVER rivals AS first
            FROM mine
            JOIN line ON line.key_id = mine.key_id AND line.priority = mine.priority AND line.share_id = mine.share_id
            JOIN line AS clock
              ON clock.key_id = mine.key_id AND clock.priority = mine.priority AND clock.share_id = -1
          WINDOW rivals AS (PARTITION BY mine.key_id, mine.priority)) AS seat;
END $$;
