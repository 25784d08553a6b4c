-- end_calls: record up to so many calls in flight under one of these keys as completed, and free their slots.
-- Nothing else goes with it: the room is there for the next trip.
WITH freed AS (
    DELETE FROM dispatcher_slot
     WHERE id IN (SELECT id FROM dispatcher_slot WHERE key_id = ANY (%(keys)s::bigint[]) LIMIT %(most)s::int)
    RETURNING call_id
)
UPDATE dispatcher_callqueue AS call
   SET state = 'completed', ticket = NULL, finished_at = clock_timestamp()
  FROM freed
 WHERE call.id = freed.call_id
