-- run_calls_now: let calls wait at the very front of their lanes, whatever time they were sent for; limits still hold.
-- Several keep their order among themselves. One without a lane comes before all that were not moved. Their lanes get
-- notes. Relies on the indexes call_waiting and call_aside.
WITH moved AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'available',
           oversized_key_id = NULL, oversized_cost = NULL,
           position = LEAST((SELECT min(first.position)
                               FROM dispatcher_callqueue AS first
                              WHERE {{waits_in(first, call.lane_id)}}),
                            (SELECT min(first.position)
                               FROM dispatcher_callqueue AS first
                              WHERE {{waits_alone_in(first, call.lane_id)}}),
                            0) - locked.place
      FROM (SELECT mine.id, row_number() OVER (ORDER BY mine.position DESC, mine.id DESC) AS place
              FROM (SELECT id, position
                      FROM dispatcher_callqueue
                     WHERE id = ANY (%(calls)s::uuid[])
                     ORDER BY id
                       FOR NO KEY UPDATE) AS mine) AS locked
     WHERE call.id = locked.id AND call.state IN ('scheduled', 'pending', 'available', 'retryable')
    RETURNING call.id, call.lane_id, call.state, call.position
), {{lanes_noted(moved, true)}}
SELECT id, lane_id, state FROM moved ORDER BY position, id
