-- awake: a waiting call in each of the lanes of lanes.sql, all of which are ready, in a queue of another name.
UPDATE dispatcher_lane SET queue = 'awake' WHERE queue = 'far';
UPDATE dispatcher_lanesite SET queue = 'awake', place = 0 WHERE queue = 'far';
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || '7' || substr(md5(random()::text), 14))::uuid,
       lane.id, 'bench.scale.tasks.nothing', '[]', '{}', '{}', lane.queue, 0, 'wait', '{}', 'available', 0, '[]', now()
  FROM dispatcher_lane AS lane
 WHERE lane.queue = 'awake';
ANALYZE;
