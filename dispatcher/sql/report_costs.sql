-- report_costs: the keys that a call spends, its queue's own included, and what it costs of each.
SELECT key.name, COALESCE((call.costs ->> key.name)::int, 1) AS cost
  FROM dispatcher_callqueue AS call
  JOIN dispatcher_lane AS lane ON lane.id = call.lane_id
  JOIN dispatcher_ratelimitkey AS key ON key.id = ANY (lane.key_ids) OR key.name = 'queue:' || call.queue
 WHERE call.id = %(call)s::uuid
 ORDER BY key.name
