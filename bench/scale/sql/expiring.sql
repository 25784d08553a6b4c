-- expiring: so many calls that wait behind those of busy tenants, and all expired at the same instant.
INSERT INTO dispatcher_callqueue (id, lane_id, queue, created_at, expires_at)
SELECT id_of(now() - interval '1 hour'), lane.id, lane.queue, now() - interval '1 hour', now() - interval '5 minutes'
  FROM generate_series(1, :due) AS n
  JOIN dispatcher_lane AS lane ON lane.id = 1 + 2 * (n % (:tenants / 2));
ANALYZE;
