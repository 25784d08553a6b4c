-- audit_wrong_slots: calls whose slots are not those of the keys that they spend, or not at their cost.
-- The key of the queue may have been made after the take; it is seen by others only when the transaction that made
-- it commits, for which it is given a minute. Of a group, a call holds the key that was chosen, too. "-" is the slot of
-- a call without keys. A call has one slot for each key, of a cost of 1 at the least. Relies on the indexes
-- call_in_flight and slot_call.
WITH held AS MATERIALIZED (
    SELECT call.id, call.costs, call.chosen_keys, lane.key_ids, queue_key.id AS queue_key_id,
           queue_key.name AS queue_key_name,
           queue_key.created_at > call.dispatched_at - interval '1 minute' AS is_new
      FROM dispatcher_callqueue AS call
      JOIN dispatcher_lane AS lane ON lane.id = call.lane_id
      LEFT JOIN LATERAL (
           SELECT key.id, key.name, key.created_at
             FROM dispatcher_ratelimitkey AS key
            WHERE key.name = 'queue:' || call.queue
            LIMIT 1) AS queue_key ON true
     WHERE call.state IN ('dispatched', 'active')
), compared AS MATERIALIZED (
    SELECT held.id, held.is_new, named.spends || of_groups.spends AS spends,
           CASE WHEN held.queue_key_id IS NULL THEN '{}'::jsonb
                ELSE jsonb_build_object(held.queue_key_name, COALESCE((held.costs ->> held.queue_key_name)::int, 1))
           END AS of_queue,
           slots.holds, slots.are_sound
      FROM held
     CROSS JOIN LATERAL (
           SELECT COALESCE(jsonb_object_agg(key.name, COALESCE((held.costs ->> key.name)::int, 1)), '{}') AS spends
             FROM dispatcher_ratelimitkey AS key
            WHERE key.id = ANY (held.key_ids)) AS named
     CROSS JOIN LATERAL (
           SELECT COALESCE(jsonb_object_agg(COALESCE(held.chosen_keys ->> key.name, 'one of ' || key.name),
                                            COALESCE((held.costs ->> key.name)::int, 1)), '{}') AS spends
             FROM dispatcher_ratelimitkey AS key
            WHERE key.id = ANY (held.key_ids) AND key.is_group) AS of_groups
     CROSS JOIN LATERAL (
           SELECT jsonb_object_agg(mine.name, mine.cost) AS holds, bool_and(mine.is_one AND mine.cost >= 1) AS are_sound
             FROM (SELECT CASE WHEN slot.key_id IS NULL THEN '-'
                               ELSE COALESCE(key.name, 'key ' || slot.key_id) END AS name,
                          sum(slot.cost) AS cost, count(*) = 1 AS is_one
                     FROM dispatcher_slot AS slot
                     LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
                    WHERE slot.call_id = held.id
                    GROUP BY 1) AS mine) AS slots
     WHERE slots.holds IS NOT NULL
), judged AS MATERIALIZED (
    SELECT id, holds, are_sound, is_new, COALESCE(NULLIF(spends || of_queue, '{}'), '{"-": 1}') AS wanted,
           COALESCE(NULLIF(spends, '{}'), '{"-": 1}') AS before_the_key
      FROM compared
)
SELECT 'call ' || id AS what, id::text AS target, '' AS version,
       json_build_object('holds', holds, 'wanted', wanted) AS facts, count(*) OVER () AS total
  FROM judged
 WHERE NOT are_sound OR (holds <> wanted AND NOT (COALESCE(is_new, false) AND holds = before_the_key))
 ORDER BY id
 LIMIT %(most)s::int
