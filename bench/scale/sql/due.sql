-- due: so many calls of idle tenants whose time came at the same instant, five minutes ago.
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at,
        scheduled_at)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM now() - interval '1 hour') * 1000)::bigint), 12, '0')
        || '7' || substr(md5(random()::text), 14))::uuid,
       lane.id, 'bench.scale.tasks.nothing', '[]', '{}', '{}', lane.queue, 0, 'wait', '{}', 'scheduled', 0, '[]',
       now() - interval '1 hour', now() - interval '5 minutes'
  FROM generate_series(1, :due) AS n
  JOIN dispatcher_lane AS lane ON lane.id = 2 * (1 + n % (:tenants / 2));
ANALYZE;
