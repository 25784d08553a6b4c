-- find_released_room: which of these keys, and of their groups, a release may have opened for a lane that is parked on
-- them, whether any lane is awake, and the queue of the lane that was released, if it holds lanes up and is down to
-- half of those that may be on their way: then a pass is worth it. A release opens a concurrency limit and nothing
-- else. Relies on the indexes lane_parked, lane_turn, lane_held and call_in_flight.
SELECT ARRAY(SELECT key.id
               FROM dispatcher_ratelimitkey AS key
              WHERE key.id = ANY (%(keys)s::bigint[])
                AND (key.concurrency IS NOT NULL OR key.override_concurrency IS NOT NULL)
                AND (key.opens_at IS NULL OR key.opens_at <= {{now}})
                AND {{first_parked_lane(key.id)}} IS NOT NULL
              UNION
             SELECT key_group.id
               FROM ({{groups_of(ARRAY(SELECT key.id
                                         FROM dispatcher_ratelimitkey AS key
                                        WHERE key.id = ANY (%(keys)s::bigint[])
                                          AND (key.concurrency IS NOT NULL OR key.override_concurrency IS NOT NULL)))}}
                    ) AS key_group
              WHERE {{first_parked_lane(key_group.id)}} IS NOT NULL) AS keys,
       {{first_awake_lane}} IS NOT NULL AS has_awake,
       ARRAY(SELECT mine.queue
               FROM dispatcher_lane AS mine
              WHERE mine.id = %(lane)s::bigint
                AND {{queue_delivery(mine.queue)}} = 'broker'
                AND {{first_held_lane(mine.queue)}} IS NOT NULL
                AND ({{queue_unclaimed(mine.queue)}}) <= %(ahead)s::int / 2) AS queues
