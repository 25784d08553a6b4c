-- find_released_room: which of these keys, and of their groups, a release may have opened for a lane that is parked on
-- them, whether any lane is awake, and the queue of the lane that was released, if it holds lanes up and is down to
-- half of those that may be on their way: then a pass is worth it. A release opens a concurrency limit and nothing
-- else. With `call` the keys and the lane are those of the call that was released. Relies on the indexes lane_parked,
-- lane_turn, lane_held, slot_key and call_in_flight.
WITH released AS MATERIALIZED (
    SELECT %(lane)s::bigint AS lane_id, %(keys)s::bigint[] AS key_ids
     WHERE %(call)s::uuid IS NULL
     UNION ALL
    SELECT lane.id,
           {{keys_of_lane(lane)}}
           || ARRAY(SELECT member.id
                      FROM dispatcher_ratelimitkey AS member
                     WHERE member.name = ANY (ARRAY(SELECT chosen.value
                                                      FROM jsonb_each_text(call.chosen_keys) AS chosen)))
      FROM dispatcher_callqueue AS call
      JOIN dispatcher_lane AS lane ON lane.id = call.lane_id
     WHERE call.id = %(call)s::uuid
), limited AS MATERIALIZED (
    SELECT key.id, key.opens_at, CASE WHEN key.override_until IS NULL THEN key.concurrency END AS concurrency
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY ((SELECT released.key_ids FROM released)::bigint[])
       AND (key.concurrency IS NOT NULL OR key.override_concurrency IS NOT NULL)
)
SELECT ARRAY(SELECT key.id
               FROM limited AS key
              WHERE (key.opens_at IS NULL OR key.opens_at <= {{now}})
                AND CASE WHEN {{first_parked_lane(key.id)}} IS NOT NULL
                         THEN COALESCE((SELECT sum(slot.cost)
                                          FROM dispatcher_slot AS slot
                                         WHERE slot.key_id = key.id) < key.concurrency, true)
                    END
              UNION
             SELECT key_group.id
               FROM ({{groups_of(ARRAY(SELECT key.id FROM limited AS key))}}) AS key_group
              WHERE {{first_parked_lane(key_group.id)}} IS NOT NULL) AS keys,
       {{first_awake_lane}} IS NOT NULL AS has_awake,
       ARRAY(SELECT mine.queue
               FROM released
               JOIN dispatcher_lane AS mine ON mine.id = released.lane_id
              WHERE {{queue_delivery(mine.queue)}} = 'broker'
                AND {{first_held_lane(mine.queue)}} IS NOT NULL
                AND ({{queue_unclaimed(mine.queue)}}) <= %(ahead)s::int / 2) AS queues
