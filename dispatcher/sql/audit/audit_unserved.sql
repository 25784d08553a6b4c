-- audit_unserved: calls that no limit holds, and that no trip will find. `why`:
-- asleep: a lane sleeps although calls wait in it, without a note;
-- parked: a key has room for the first call of a lane that is parked on it, or is gone, without a note;
-- ready: a queue has a lane that is ready, and a worker that could take its first call: one that is idle, or of the
-- broker's queues a live one, while fewer calls are on their way than may be;
-- due: the time of a call passed a while ago, and it is not in its lane;
-- unplaced: a call was sent a while ago, and has no lane yet.
-- Hops from lane to lane on the index call_waiting, from key to key and from queue to queue on lanesite_place: neither
-- the backlog nor the number of lanes at one place costs anything. Relies on call_waiting, call_in_flight, call_due,
-- call_unplaced, slot_key and start_key.
WITH RECURSIVE {{clock}}, {{hops(ready, dispatcher_lanesite, queue, place = 0, '', true)}},
{{hops(hop, dispatcher_lanesite, place, true, 0, true)}}, {{keys_unserved(hop)}},
{{hops(lane, dispatcher_callqueue, lane_id, state = 'available' AND oversized_key_id IS NULL, 0, true)}},
found AS (
    SELECT 'asleep' AS why, 'lane ' || site.lane_id AS what, site.lane_id::text AS target,
           head.id || ' ' || head.version AS version, site.lane_id AS place,
           jsonb_build_object('queue', site.queue, 'priority', site.priority, 'first_call', head.id,
                              'sent_at', head.created_at) AS facts
      FROM clock
     CROSS JOIN lane
      JOIN dispatcher_lanesite AS site ON site.lane_id = lane.value
     CROSS JOIN LATERAL {{first_call_in(site.lane_id)}} AS head
     WHERE site.place IS NULL AND NOT {{is_noted(lane_id, ARRAY[site.lane_id], clock.now)}}
       AND {{not_expired(head, clock.now)}}
     UNION ALL
    (SELECT DISTINCT ON (unserved.key_id)
            'parked', 'key ' || COALESCE(unserved.name, unserved.key_id::text), unserved.key_id::text,
            concat_ws(' ', unserved.lane_id, unserved.call_id, unserved.version), unserved.key_id,
            jsonb_build_object('lane', unserved.lane_id, 'first_call', unserved.call_id, 'cost', unserved.cost,
                               'is_gone', unserved.name IS NULL)
       FROM unserved
      ORDER BY unserved.key_id, unserved.lane_id)
     UNION ALL
    SELECT 'ready', 'queue ' || ready.value, ready.value, front.lane_id || ' ' || head.id || ' ' || head.version,
           front.lane_id,
           jsonb_build_object('lane', front.lane_id, 'first_call', head.id, 'delivery', {{queue_delivery(ready.value)}})
      FROM clock
     CROSS JOIN ready
     CROSS JOIN LATERAL (
           SELECT site.lane_id
             FROM dispatcher_lanesite AS site
            WHERE site.place = 0 AND site.queue = ready.value
            ORDER BY site.priority DESC, site.served_at, site.lane_id
            LIMIT 1) AS front
     CROSS JOIN LATERAL {{first_call_in(front.lane_id)}} AS head
     WHERE {{not_expired(head, clock.now)}} AND {{queue_is_served(ready.value, clock.now)}}
     UNION ALL
    SELECT late.why, 'call ' || late.id, late.id::text, late.version, late.position,
           jsonb_build_object('state', late.state, 'queue', late.queue, 'keys', late.keys, 'sent_at', late.created_at,
                              'scheduled_at', late.scheduled_at)
      FROM ((SELECT 'due' AS why, call.id, call.state, call.queue, call.placement -> 'names' AS keys, call.created_at,
                    call.scheduled_at, call.position, call.xmin::text AS version
               FROM dispatcher_callqueue AS call
              WHERE call.state IN ('scheduled', 'retryable')
                -- A subquery is asked once, so the index can be used: the clock would be asked for every row.
                AND call.scheduled_at < (SELECT {{now}} - %(late)s::interval)
              ORDER BY call.scheduled_at
              LIMIT 100)
             UNION ALL
            (SELECT 'unplaced', call.id, call.state, call.queue, call.placement -> 'names', call.created_at,
                    call.scheduled_at, call.position, call.xmin::text
               FROM dispatcher_callqueue AS call
              WHERE {{is_unplaced(call)}} AND call.created_at < {{now}} - %(late)s::interval
              ORDER BY call.position, call.id
              LIMIT %(most)s::int)) AS late
)
SELECT what, target, version, jsonb_build_object('why', why) || jsonb_strip_nulls(facts) AS facts,
       count(*) OVER () AS total
  FROM found
 ORDER BY why, place, target
 LIMIT %(most)s::int
