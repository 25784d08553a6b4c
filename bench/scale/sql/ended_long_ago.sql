-- ended_long_ago: a thousand calls that are past the retention of what was completed.
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at,
        dispatched_at, published_at, started_at, finished_at)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(random()::text), 14))::uuid,
       2, 'bench.scale.tasks.nothing', '[]', '{}', '{}', 'q00', 0, 'wait', '{}', 'completed', 1, '[]', at, at, at, at, at
  FROM generate_series(1, 1000) AS n
 CROSS JOIN LATERAL (SELECT now() - interval '9 days' + n * interval '1 second' AS at) AS past;
