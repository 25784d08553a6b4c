-- first_lane_within(queue, reached): the lane that is served first of those that a queue holds and that spend none of
-- the keys `reached`. Relies on the index lane_held.
(SELECT lane.id
   FROM dispatcher_lane AS lane
  WHERE lane.is_held AND lane.queue = {{queue}} AND NOT lane.key_ids && {{reached}}
  ORDER BY lane.priority DESC, lane.served_at, lane.id
  LIMIT 1)
