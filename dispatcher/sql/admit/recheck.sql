-- recheck: what changed while a pass decided, seen after its commit. An expired call is the tick's, not a pass's: for
-- such a one, the same lane would be looked at again and again.
-- Lanes put to sleep that have a call after all; keys found full that hold less now; keys with room and lanes parked
-- on them; queues that hold lanes and have room on the way to their workers now. Whichever of a pass and a sender or release committed last sees the other: so no wake-up is lost.
SELECT ARRAY(SELECT lane.id
               FROM unnest(%(asleep)s::bigint[]) AS lane (id)
              WHERE (SELECT call.id
                       FROM dispatcher_callqueue AS call
                      WHERE call.lane_id = lane.id AND call.state = 'available' AND call.oversized_key_id IS NULL
                        AND (call.expires_at IS NULL
                             OR call.expires_at > COALESCE(%(now)s::timestamptz, clock_timestamp()))
                      ORDER BY call.position
                      LIMIT 1) IS NOT NULL) AS lanes,
       ARRAY(SELECT key.id
               FROM unnest(%(full)s::bigint[], %(held)s::bigint[]) AS key (id, held)
              WHERE (SELECT COALESCE(sum(slot.cost), 0) FROM dispatcher_slot AS slot WHERE slot.key_id = key.id) < key.held
              UNION
             SELECT key.id
               FROM unnest(%(keys_with_room)s::bigint[]) AS key (id)
              WHERE (SELECT lane.id
                       FROM dispatcher_lane AS lane
                      WHERE lane.parked_on_id = key.id
                      ORDER BY lane.priority DESC, lane.served_at, lane.id
                      LIMIT 1) IS NOT NULL) AS keys,
       ARRAY(SELECT queue.name
               FROM unnest(%(filled)s::text[]) AS queue (name)
              WHERE (SELECT lane.id
                       FROM dispatcher_lane AS lane
                      WHERE lane.is_held AND lane.queue = queue.name
                      ORDER BY lane.priority DESC, lane.served_at, lane.id
                      LIMIT 1) IS NOT NULL
                AND (SELECT count(*)
                       FROM (SELECT
                               FROM dispatcher_callqueue AS call
                              WHERE call.queue = queue.name AND call.state IN ('dispatched', 'active') AND call.state >= 'dispatched'
                              LIMIT %(ahead)s::int) AS call) < %(ahead)s::int) AS queues
