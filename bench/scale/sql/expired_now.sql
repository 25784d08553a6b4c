-- expired_now: a hundred calls behind those of busy tenants, whose time to start has just ended.
INSERT INTO dispatcher_callqueue (lane_id, queue, expires_at)
SELECT lane.id, lane.queue, clock_timestamp()
  FROM generate_series(1, 100) AS n
  JOIN dispatcher_lane AS lane ON lane.id = 3 + 4 * (n % 10);
