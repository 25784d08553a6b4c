-- hold_lanes: hold lanes of queues whose workers take calls themselves, so that they find them; a pass would do no
-- more.
-- One that is locked is left to who has locked it: a pass looks again after its commit, and another sender holds it.
-- The commit is not waited for, see wake_for_call.
WITH clock AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS durability
), free AS MATERIALIZED (
    SELECT lane.id
      FROM clock
     CROSS JOIN dispatcher_lane AS lane
     WHERE lane.id = ANY (%(lanes)s::bigint[]) AND lane.parked_on_id IS NULL
       FOR NO KEY UPDATE OF lane SKIP LOCKED
)
UPDATE dispatcher_lane AS lane
   SET is_held = true, is_awake = false
  FROM free
 WHERE lane.id = free.id AND lane.parked_on_id IS NULL AND NOT lane.is_held
