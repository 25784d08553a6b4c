-- defer_keys: leave these keys to the next tick, as if time had opened them.
-- A key that somebody else has locked is not waited for: the lane at its front is woken in its place, and returned.
-- Relies on the index lane_parked.
WITH locked AS MATERIALIZED (
    SELECT id
      FROM dispatcher_ratelimitkey
     WHERE id = ANY (%(keys)s::bigint[])
     ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
), opened AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET opens_at = {{now}}
     WHERE key.id = ANY (ARRAY(SELECT locked.id FROM locked))
), front AS MATERIALIZED (
    SELECT lane.id
      FROM (SELECT unnest(%(keys)s::bigint[]) EXCEPT SELECT id FROM locked) AS busy (id)
     CROSS JOIN LATERAL (
           SELECT lane.id
             FROM dispatcher_lane AS lane
            WHERE lane.parked_on_id = busy.id
            ORDER BY lane.priority DESC, lane.served_at, lane.id
            LIMIT 1
              FOR NO KEY UPDATE SKIP LOCKED) AS lane
)
UPDATE dispatcher_lane AS lane
   SET is_awake = true, parked_on_id = NULL, is_held = false
  FROM front
 WHERE lane.id = front.id
RETURNING lane.id
