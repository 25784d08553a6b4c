-- work: what the last busy tick admitted has ended, ten more calls wait in each of its lanes, and their keys open now.
DELETE FROM dispatcher_slot WHERE key_id BETWEEN 9000000 AND 9000009;
UPDATE dispatcher_callqueue
   SET state = 'completed', ticket = NULL, finished_at = clock_timestamp()
 WHERE lane_id BETWEEN 9000000 AND 9000009 AND state IN ('dispatched', 'active') AND queue = 'q01';
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || '7' || substr(md5(random()::text), 14))::uuid,
       lane.id, 'bench.scale.tasks.nothing', '[]', '{}', '{}', lane.queue, 0, 'wait', '{}', 'available', 0, '[]',
       clock_timestamp()
  FROM generate_series(1, 10) AS turn
 CROSS JOIN dispatcher_lane AS lane
 WHERE lane.id BETWEEN 9000000 AND 9000009;
UPDATE dispatcher_lane SET is_awake = true, parked_on_id = NULL, is_held = false WHERE id BETWEEN 9000000 AND 9000009;
UPDATE dispatcher_ratelimitkey SET opens_at = NULL WHERE id BETWEEN 9000000 AND 9000009;
