-- first_awake_lane: the lane that is served first of those that are awake. Relies on the index lane_turn.
(SELECT lane.id
   FROM dispatcher_lane AS lane
  WHERE lane.is_awake
  ORDER BY lane.priority DESC, lane.served_at, lane.id
  LIMIT 1)
