-- hold_lanes: hold lanes of queues whose workers take calls themselves, so that they find them; a pass would do no
-- more.
-- One that is locked is left to who has locked it: a pass looks again after its commit, and another sender holds it.
WITH free AS MATERIALIZED (
    SELECT lane.id
      FROM dispatcher_lane AS lane
     WHERE lane.id = ANY (%(lanes)s::bigint[]) AND lane.parked_on_id IS NULL
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dispatcher_lane AS lane
   SET is_held = true, is_awake = false
  FROM free
 WHERE lane.id = free.id AND lane.parked_on_id IS NULL AND NOT lane.is_held
