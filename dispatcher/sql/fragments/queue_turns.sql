-- queue_turns(rows): when each of these rows is due by the weight of its queue; none if all weights are equal.
SELECT {{rows}}.id, share.due + share.stride * (row_number() OVER queue_turn - 1) AS due
  FROM unnest(%(weighted)s::text[], %(due)s::bigint[], %(stride)s::bigint[]) AS share (queue, due, stride)
  JOIN {{rows}} ON {{rows}}.queue = share.queue
WINDOW queue_turn AS (PARTITION BY {{rows}}.queue
                          ORDER BY {{rows}}.priority DESC, {{rows}}.turn, {{rows}}.served_at, {{rows}}.lane_id)
