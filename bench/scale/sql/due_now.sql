-- due_now: a hundred calls of idle tenants, whose time has just come.
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at,
        scheduled_at)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || '7' || substr(md5(random()::text), 14))::uuid,
       lane.id, 'bench.scale.tasks.nothing', '[]', '{}', '{}', lane.queue, 0, 'wait', '{}', 'scheduled', 0, '[]',
       clock_timestamp(), clock_timestamp()
  FROM generate_series(1, 100) AS n
  JOIN dispatcher_lane AS lane ON lane.id = 2 * (1 + n % LEAST(:tenants / 2, 50));
