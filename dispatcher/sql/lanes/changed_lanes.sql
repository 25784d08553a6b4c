-- changed_lanes: where a pass is wanted after calls came to these lanes, or left them; `positions`: the first of their
-- places.
-- The lanes that neither a key nor their queue holds up; and the keys that the others are parked on, if none waits
-- there before that place: what such a key is shut for was another call, and the one that is first now may cost less.
-- Any other that is parked or held needs no pass: who lets it go on looks again after its own commit, and sees the call
-- then.
-- `held`: such lanes of queues whose workers take calls themselves, directly or over HTTP, which need no pass;
-- `direct`: the queues of those that Celery workers serve directly.
-- `call`: the call that came, in place of lanes and positions; nothing is wanted once it waits no more.
-- To be asked in a statement after the change, which sees what a pass did with the lane meanwhile. Relies on the index
-- call_waiting.
WITH moved AS MATERIALIZED (
    SELECT unnest(%(lanes)s::bigint[]) AS id, unnest(%(positions)s::bigint[]) AS position
     UNION ALL
    SELECT call.lane_id, call.position
      FROM dispatcher_callqueue AS call
     WHERE call.id = %(call)s::uuid AND call.state = %(waiting)s::text
), changed AS MATERIALIZED (
    SELECT lane.id, lane.parked_on_id, moved.position,
           {{queue_delivery(lane.queue)}} AS delivery,
           lane.queue
      FROM moved
     CROSS JOIN LATERAL (
           SELECT lane.id, lane.queue, lane.parked_on_id
             FROM dispatcher_lane AS lane
            WHERE lane.id = moved.id AND NOT lane.is_held
            LIMIT 1) AS lane
)
SELECT ARRAY(SELECT id FROM changed WHERE parked_on_id IS NULL AND delivery = 'broker' ORDER BY id) AS lanes,
       ARRAY(SELECT id FROM changed WHERE parked_on_id IS NULL AND delivery <> 'broker' ORDER BY id) AS held,
       ARRAY(SELECT DISTINCT queue
               FROM changed
              WHERE parked_on_id IS NULL AND delivery = 'direct'
              ORDER BY queue) AS direct,
       ARRAY(SELECT DISTINCT parked_on_id
               FROM changed
              WHERE parked_on_id IS NOT NULL
                AND COALESCE((SELECT call.position
                                FROM dispatcher_callqueue AS call
                               WHERE {{waits_in(call, changed.id)}}
                               ORDER BY call.position
                               LIMIT 1) >= changed.position, true)
              ORDER BY parked_on_id) AS keys
