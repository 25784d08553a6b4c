-- hold_lanes: let queues whose workers take calls themselves hold these lanes, so that they find them; a pass would do
-- no more. One that is awake, of a queue that the broker delivers, is left to the next pass. Returns the queue of each.
-- One that is locked is left to who has locked it: a pass looks again after its commit, and another sender holds it.
-- What it decides by is read under the lock, and materialized, as in wake_lanes. The commit is not waited for, see
-- wake_for_call.
WITH clock AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS durability
), free AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.is_awake, lane.parked_on_id, lane.is_held
      FROM clock
     CROSS JOIN dispatcher_lane AS lane
     WHERE lane.id = ANY (%(lanes)s::bigint[])
       FOR NO KEY UPDATE OF lane SKIP LOCKED
)
UPDATE dispatcher_lane AS lane
   SET is_held = true, is_awake = false, parked_on_id = NULL
  FROM free
 WHERE lane.id = free.id AND free.parked_on_id IS NULL AND NOT free.is_held
   AND (NOT free.is_awake OR {{queue_delivery(free.queue)}} <> 'broker')
RETURNING lane.queue
