-- admit_calls: give the chosen calls their tickets and slots, and record what the pass decided on its lanes and keys.
-- The caller holds the locks of the lanes, their keys and the calls, and has counted since. Every way in ends here.
-- `waiting` is the state `available`: written out, it would offer the planner the index of all that wait.
WITH {{clock}}, admitted AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'dispatched', ticket = gen_random_uuid(), dispatched_at = clock.now,
           published_at = NULL, started_at = NULL, chosen_keys = chosen.keys
      FROM clock, unnest(%(calls)s::uuid[], %(chosen_keys)s::jsonb[]) WITH ORDINALITY AS chosen (id, keys, turn)
     WHERE call.id = chosen.id AND call.state = %(waiting)s::text
    RETURNING {{message_columns(call)}}, chosen.turn
), held AS (
    INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
    SELECT admitted.id, slot.key_id, slot.cost, clock.now + %(lease)s::interval
      FROM clock, unnest(%(slot_call)s::uuid[], %(slot_key)s::bigint[], %(slot_cost)s::int[])
           AS slot (call_id, key_id, cost)
      JOIN admitted ON admitted.id = slot.call_id
), moved AS (
    UPDATE dispatcher_lane AS lane
       SET is_awake = moving.is_awake, parked_on_id = moving.parked_on, is_held = moving.is_held,
           -- Who had its last turn late in this pass waits for longer than who had it early.
           served_at = COALESCE(clock.now + moving.turn * interval '1 microsecond', lane.served_at)
      FROM clock, unnest(%(lane)s::bigint[], %(lane_awake)s::bool[], %(lane_parked)s::bigint[], %(lane_held)s::bool[],
                         %(lane_turn)s::int[]) AS moving (id, is_awake, parked_on, is_held, turn)
     WHERE lane.id = moving.id
       AND (moving.turn IS NOT NULL OR lane.is_awake <> moving.is_awake OR lane.is_held <> moving.is_held
            OR lane.parked_on_id IS DISTINCT FROM moving.parked_on)
), numbered AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET admissions = key.admissions + 1,
           chosen_at = CASE WHEN spent.is_stopped THEN key.chosen_at ELSE clock.now END,
           -- An opening to come stands: it may be that of a cheaper call, whose lane this pass did not look at.
           opens_at = CASE WHEN NOT spent.is_stopped THEN key.opens_at
                           WHEN key.opens_at > clock.now AND spent.opens_at IS NOT NULL
                           THEN LEAST(key.opens_at, spent.opens_at)
                           ELSE spent.opens_at END
      FROM clock, unnest(%(key)s::bigint[], %(key_stopped)s::bool[], %(key_opens)s::timestamptz[])
           AS spent (id, is_stopped, opens_at)
     WHERE key.id = spent.id
)
SELECT id, ticket, task, args, kwargs, call_data, headers, options, queue, attempt, chosen_keys
  FROM admitted
 ORDER BY turn, id
