-- due_now: a hundred calls of idle tenants, whose time has just come.
INSERT INTO dispatcher_callqueue (lane_id, queue, state, scheduled_at)
SELECT lane.id, lane.queue, 'scheduled', clock_timestamp()
  FROM generate_series(1, 100) AS n
  JOIN dispatcher_lane AS lane ON lane.id = 2 * (1 + n % LEAST(:tenants / 2, 50));
