-- release_oversized: let calls that waited alone wait in their lanes again, in their old places, where their cost fits
-- now.
-- Per key up to `most`, the cheapest first. The caller wakes the lanes in the same transaction. Relies on the index
-- call_oversized.
WITH fitting AS MATERIALIZED (
    SELECT found.id
      FROM unnest(%(keys)s::bigint[], %(costs)s::int[]) AS raised (key_id, cost)
     CROSS JOIN LATERAL (
           SELECT call.id
             FROM dispatcher_callqueue AS call
            WHERE call.oversized_key_id = raised.key_id AND call.oversized_cost <= raised.cost
            ORDER BY call.oversized_cost, call.position, call.id
            LIMIT %(most)s::int
              FOR NO KEY UPDATE SKIP LOCKED) AS found
)
UPDATE dispatcher_callqueue AS call
   SET oversized_key_id = NULL, oversized_cost = NULL
 -- An array: joined, the planner may read the whole table to find these.
 WHERE call.id = ANY (ARRAY(SELECT fitting.id FROM fitting)) AND call.oversized_key_id IS NOT NULL
RETURNING call.lane_id
