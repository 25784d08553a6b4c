-- by_weight(rows, shares): these rows, each with the time at which it is due by the weight of its queue.
-- `shares`: when each queue is due, and by how much each start moves that (see limits.turns).
SELECT {{rows}}.id, {{rows}}.lane_id, {{rows}}.queue, {{rows}}.key_ids, {{rows}}.priority, {{rows}}.turn,
       {{rows}}.served_at, share.due + share.stride * (row_number() OVER queue_turn - 1) AS due
  FROM {{rows}}
  LEFT JOIN jsonb_to_recordset({{shares}}) AS share (queue text, due bigint, stride bigint)
         ON share.queue = {{rows}}.queue
WINDOW queue_turn AS (PARTITION BY {{rows}}.queue
                          ORDER BY {{rows}}.priority DESC, {{rows}}.turn, {{rows}}.served_at, {{rows}}.lane_id)
