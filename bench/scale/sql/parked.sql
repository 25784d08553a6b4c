-- parked: so many lanes, each with two waiting calls and a key of its own with room, that a key without room stops.
INSERT INTO dispatcher_ratelimitkey (id, name, is_paused, concurrency) VALUES (30000000, 'hot', false, 0);
INSERT INTO dispatcher_ratelimitkey (id, name, is_paused, concurrency)
SELECT 30000000 + n, 'hot:' || n, false, 1000 FROM generate_series(1, :parked) AS n;
INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT 30000000 + n, 'hot', 0, 'wait', ARRAY[30000000, 30000000 + n] FROM generate_series(1, :parked) AS n;
UPDATE dispatcher_lanesite SET place = 30000000 WHERE queue = 'hot';
INSERT INTO dispatcher_callqueue (lane_id, queue)
SELECT lane.id, lane.queue
  FROM generate_series(1, 2) AS turn
 CROSS JOIN dispatcher_lane AS lane
 WHERE lane.queue = 'hot';
ANALYZE;
