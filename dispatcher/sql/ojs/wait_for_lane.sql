-- wait_for_lane: lock the lane of a queue that a fetch takes first, after other fetches and passes have released it; or
-- the first of `awake`, if no lane is held. The caller holds no lock. Relies on the index lane_held.
SELECT lane.id, lane.parked_on_id
  FROM dispatcher_lane AS lane
 WHERE lane.id = COALESCE((SELECT head.id
                             FROM dispatcher_lane AS head
                            WHERE head.is_held AND head.queue = %(queue)s::text
                            ORDER BY head.priority DESC, head.served_at, head.id
                            LIMIT 1), (%(awake)s::bigint[])[1])
   FOR NO KEY UPDATE
