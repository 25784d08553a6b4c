-- find_released_room: which of these keys, and of their groups, a release may have opened for a lane that is parked on
-- them, whether any lane is awake, and the queue of the lane that was released, if it holds lanes up and is down to
-- half of those that may be on their way: then a pass is worth it. With `call` the keys and the lane are those of the
-- call that was released. Relies on the indexes lane_parked, lane_turn, lane_held, slot_key and call_in_flight.
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
)
SELECT ARRAY({{keys_released((SELECT released.key_ids FROM released)::bigint[])}}) AS keys,
       {{first_awake_lane}} IS NOT NULL AS has_awake,
       ARRAY(SELECT mine.queue
               FROM released
               JOIN dispatcher_lane AS mine ON mine.id = released.lane_id
              WHERE {{queue_delivery(mine.queue)}} = 'broker'
                AND {{first_held_lane(mine.queue)}} IS NOT NULL
                AND ({{queue_unclaimed(mine.queue)}}) <= %(ahead)s::int / 2) AS queues
