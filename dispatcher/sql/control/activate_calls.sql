-- activate_calls: let calls that were sent as pending wait in their lanes, or for their time if that has not come.
-- Their lanes get notes.
WITH moved AS (
    UPDATE dispatcher_callqueue AS call
       SET state = CASE WHEN call.scheduled_at > {{now}} THEN 'scheduled' ELSE 'available' END
      FROM (SELECT id
              FROM dispatcher_callqueue
             WHERE id = ANY (%(calls)s::uuid[])
             ORDER BY id
               FOR NO KEY UPDATE) AS locked
     WHERE call.id = locked.id AND call.state = 'pending'
    RETURNING call.id, call.lane_id, call.state, call.position
), {{lanes_noted(moved, true)}}
SELECT id, lane_id, state FROM moved ORDER BY position, id
