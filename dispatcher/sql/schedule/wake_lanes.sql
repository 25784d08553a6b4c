-- wake_lanes: let the next pass serve these lanes; one that is parked or held stays where it is.
-- For short transactions only: it waits for a pass that holds a lane, so that pass cannot miss what this one wrote.
-- What it decides by is read under the lock: the statement's own snapshot may be older than that pass. Materialized,
-- or the planner would move the conditions in front of the lock. The others are so already under the lock; but
-- constraints are first tried on the row as the snapshot has it.
WITH locked AS MATERIALIZED (
    SELECT id, is_awake, parked_on_id, is_held
      FROM dispatcher_lane
     WHERE id = ANY (%(lanes)s::bigint[])
     ORDER BY id
       FOR NO KEY UPDATE
)
UPDATE dispatcher_lane AS lane
   SET is_awake = true, parked_on_id = NULL, is_held = false
  FROM locked
 WHERE lane.id = locked.id AND NOT locked.is_awake AND locked.parked_on_id IS NULL AND NOT locked.is_held
