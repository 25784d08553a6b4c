-- mark_oversized: let calls that cost more than the limits in force ever allow wait alone, each for the key that says
-- so.
-- The caller holds the locks of the calls, their lanes and their keys. `waiting`: see admit_calls.
UPDATE dispatcher_callqueue AS call
   SET oversized_key_id = aside.key_id, oversized_cost = aside.cost
  FROM unnest(%(calls)s::uuid[], %(keys)s::bigint[], %(costs)s::int[]) AS aside (id, key_id, cost)
 WHERE call.id = aside.id AND call.state = %(waiting)s::text
