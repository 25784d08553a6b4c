-- lanes: so many more lanes in one queue, each under a key of its own with room; all asleep and without calls.
INSERT INTO dispatcher_ratelimitkey (id, name, is_paused, concurrency)
SELECT 20000000 + n, 'far:' || n, false, 1000 FROM generate_series(1, :lanes) AS n;
INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT 20000000 + n, 'far', 0, 'wait', ARRAY[20000000 + n] FROM generate_series(1, :lanes) AS n;
ANALYZE;
