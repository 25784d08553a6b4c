-- wait_for_lane: lock the lane of a queue that a fetch takes first, after other fetches and passes have released it; or
-- one that is awake, if no lane is held. The caller holds no lock. Relies on the indexes lane_held and lane_awake.
SELECT lane.id, lane.parked_on_id
  FROM dispatcher_lane AS lane
 WHERE lane.id = COALESCE({{first_held_lane(%(queue)s::text)}},
                          (SELECT head.id
                             FROM dispatcher_lane AS head
                            WHERE head.is_awake AND head.queue = %(queue)s::text
                            ORDER BY head.priority DESC, head.queue
                            LIMIT 1))
   FOR NO KEY UPDATE
