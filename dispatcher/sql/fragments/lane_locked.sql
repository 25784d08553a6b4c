-- lane_locked(lane): a subquery: the lane of this id, locked, unless another transaction has locked it. By the id
-- alone: a lane that has changed since the snapshot would be locked as it is now, and only then be left out by a
-- condition. Who skips it meanwhile leaves it to this transaction, which would not look at it. `is_asleep`: by now, so
-- that a statement after the commit is to look at it, if this transaction does not serve it.
SELECT lane.id, lane.queue, lane.key_ids, lane.priority, lane.served_at, lane.parked_on_id,
       lane.parked_on_id IS NULL AND NOT (lane.is_held OR lane.is_awake) AS is_asleep
  FROM dispatcher_lane AS lane
 WHERE lane.id = {{lane}}
   FOR NO KEY UPDATE SKIP LOCKED
