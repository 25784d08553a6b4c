-- first_parked_lane(key): the lane that is served first of those parked on a key. Relies on the index lane_parked.
(SELECT lane.id
   FROM dispatcher_lane AS lane
  WHERE lane.parked_on_id = {{key}}
  ORDER BY lane.priority DESC, lane.served_at, lane.id
  LIMIT 1)
