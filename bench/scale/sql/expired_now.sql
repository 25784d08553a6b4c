-- expired_now: a hundred calls behind those of busy tenants, whose time to start has just ended.
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at,
        expires_at)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || '7' || substr(md5(random()::text), 14))::uuid,
       lane.id, 'bench.scale.tasks.nothing', '[]', '{}', '{}', lane.queue, 0, 'wait', '{}', 'available', 0, '[]',
       clock_timestamp(), clock_timestamp()
  FROM generate_series(1, 100) AS n
  JOIN dispatcher_lane AS lane ON lane.id = 3 + 4 * (n % 10);
