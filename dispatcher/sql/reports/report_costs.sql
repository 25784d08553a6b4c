-- report_costs: the keys that a call spends, its queue's own included, and what it costs of each; with a group, the key
-- that its latest take chose. Those that a call without a lane names may not exist yet.
SELECT key.name, COALESCE((call.costs ->> key.name)::int, 1) AS cost, call.chosen_keys ->> key.name AS chosen
  FROM dispatcher_callqueue AS call
  JOIN dispatcher_lane AS lane ON lane.id = call.lane_id
  JOIN dispatcher_ratelimitkey AS key ON key.id = ANY (lane.key_ids) OR key.name = 'queue:' || call.queue
 WHERE call.id = %(call)s::uuid
 UNION
SELECT spent.name, COALESCE((call.costs ->> spent.name)::int, 1), NULL
  FROM dispatcher_callqueue AS call
 CROSS JOIN LATERAL (
       SELECT jsonb_array_elements_text(call.placement -> 'names')
        UNION
       SELECT key.name
         FROM dispatcher_ratelimitkey AS key
        WHERE key.name = 'queue:' || call.queue) AS spent (name)
 WHERE call.id = %(call)s::uuid AND call.lane_id IS NULL
 ORDER BY name
