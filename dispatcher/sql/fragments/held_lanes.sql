-- held_lanes(queue, most): a subquery: up to `most` of the lanes that a queue holds, locked, in order of service. Those
-- that spend a key of `avoid` are left out. Relies on the index lane_held.
SELECT mine.id, mine.queue, mine.key_ids, mine.priority, mine.served_at, mine.is_asleep
  FROM (SELECT lane.id
          FROM dispatcher_lane AS lane
         WHERE lane.is_held AND lane.queue = {{queue}} AND NOT lane.key_ids && %(avoid)s::bigint[]
         ORDER BY lane.priority DESC, lane.served_at, lane.id
         {{may_be_locked({{most}})}}) AS seen
 CROSS JOIN LATERAL ({{lane_locked(seen.id)}}) AS mine
 LIMIT {{most}}
