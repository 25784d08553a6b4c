-- lock_unused_lanes: lock lanes and their places against senders and trips; what one of these has locked is skipped.
SELECT lane.id
  FROM dispatcher_lane AS lane
  JOIN dispatcher_lanesite AS site ON site.lane_id = lane.id
 WHERE lane.id = ANY (%(ids)s::bigint[])
 ORDER BY lane.id
   FOR UPDATE OF lane, site SKIP LOCKED
