-- expiring: so many calls that wait behind those of busy tenants, and all expired at the same instant.
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at,
        expires_at)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM now() - interval '1 hour') * 1000)::bigint), 12, '0')
        || '7' || substr(md5(random()::text), 14))::uuid,
       lane.id, 'bench.scale.tasks.nothing', '[]', '{}', '{}', lane.queue, 0, 'wait', '{}', 'available', 0, '[]',
       now() - interval '1 hour', now() - interval '5 minutes'
  FROM generate_series(1, :due) AS n
  JOIN dispatcher_lane AS lane ON lane.id = 1 + 2 * (n % (:tenants / 2));
ANALYZE;
