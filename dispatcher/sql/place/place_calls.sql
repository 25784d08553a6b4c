-- place_calls: put calls that have no lane yet into those of their kinds; they keep their places in the order of
-- sending. Each lane gets a note: one of these calls may be its first now, so it is looked at even where it is parked.
-- What another transaction has locked stays without a lane, and so does what has no lane after all: both are tried
-- again.
-- The lanes are locked as in send_calls.
WITH kind AS MATERIALIZED (
    SELECT kind.number, lane.id AS lane_id, lane.key_ids
      FROM {{lane_kinds}}
     CROSS JOIN LATERAL (
           {{lane_of(kind)}}) AS lane
), mine AS MATERIALIZED (
    SELECT call.id, wanted.kind
      FROM unnest(%(calls)s::uuid[], %(kind_of)s::int[]) AS wanted (id, kind)
      JOIN dispatcher_callqueue AS call ON call.id = wanted.id
     WHERE {{is_unplaced(call)}}
     ORDER BY call.id
       FOR NO KEY UPDATE OF call SKIP LOCKED
), placed AS (
    UPDATE dispatcher_callqueue AS call
       SET lane_id = kind.lane_id, placement = NULL,
           key_costs = CASE WHEN call.costs <> '{}' THEN {{costs_of_keys(call.costs, kind.key_ids)}} END
      FROM mine
      JOIN kind ON kind.number = mine.kind
     WHERE call.id = mine.id AND {{is_unplaced(call)}}
    RETURNING call.id, call.lane_id, call.position, call.state
), moved AS (
    SELECT placed.lane_id, placed.position FROM placed WHERE placed.state = 'available'
), {{lanes_noted(moved, true)}}
SELECT id, lane_id, state FROM placed ORDER BY position, id
