-- defer_lanes: leave these lanes, asleep or parked, to the next pass: a key of theirs was locked by somebody else.
-- It waits for a pass that holds a lane, so that pass can't put it elsewhere afterwards. What it decides by is read
-- under the lock, and materialized, and `is_held` is set, as wake_lanes does. A lane that its queue has held is found
-- by its queue.
WITH locked AS MATERIALIZED (
    SELECT id, is_awake, is_held
      FROM dispatcher_lane
     WHERE id = ANY (%(lanes)s::bigint[])
     ORDER BY id
       FOR NO KEY UPDATE
)
UPDATE dispatcher_lane AS lane
   SET is_awake = true, parked_on_id = NULL, is_held = false
  FROM locked
 WHERE lane.id = locked.id AND NOT locked.is_awake AND NOT locked.is_held
