-- first_held_lane(queue): the lane that is served first of those that a queue holds. Relies on the index lane_held.
(SELECT lane.id
   FROM dispatcher_lane AS lane
  WHERE lane.is_held AND lane.queue = {{queue}}
  ORDER BY lane.priority DESC, lane.served_at, lane.id
  LIMIT 1)
