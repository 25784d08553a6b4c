-- recheck: what changed while a pass decided, seen after its commit. An expired call is the tick's, not a pass's: for
-- such a one, the same lane would be looked at again and again.
-- Lanes put to sleep that have a call after all; keys found full that hold less now; keys with room and lanes parked on
-- them; queues that hold lanes and have room on the way to their workers now. Whichever of a pass and a sender or
-- release committed last sees the other: so no wake-up is lost.
SELECT ARRAY(SELECT lane.id
               FROM unnest(%(asleep)s::bigint[]) AS lane (id)
              WHERE (SELECT call.id
                       FROM dispatcher_callqueue AS call
                      WHERE {{waits_in(call, lane.id)}}
                        AND {{not_expired(call, {{now}})}}
                      ORDER BY call.position
                      LIMIT 1) IS NOT NULL) AS lanes,
       ARRAY(SELECT key.id
               FROM unnest(%(full)s::bigint[], %(held)s::bigint[]) AS key (id, held)
               LEFT JOIN ({{slots_of(%(full)s::bigint[])}}) AS slots ON slots.key_id = key.id
              WHERE COALESCE(slots.held, 0) < key.held
              UNION
             SELECT key.id
               FROM unnest(%(keys_with_room)s::bigint[]) AS key (id)
              WHERE {{first_parked_lane(key.id)}} IS NOT NULL) AS keys,
       ARRAY(SELECT queue.name
               FROM unnest(%(filled)s::text[]) AS queue (name)
              WHERE {{first_held_lane(queue.name)}} IS NOT NULL
                AND ({{queue_unclaimed(queue.name)}}) < %(ahead)s::int) AS queues
