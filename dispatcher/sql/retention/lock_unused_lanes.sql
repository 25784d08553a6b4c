-- lock_unused_lanes: lock lanes against senders; lanes that a sender or a pass has locked are skipped.
SELECT lane.id
  FROM dispatcher_lane AS lane
 WHERE lane.id = ANY (%(ids)s::bigint[])
 ORDER BY lane.id
   FOR UPDATE SKIP LOCKED
