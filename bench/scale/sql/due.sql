-- due: so many calls of idle tenants whose time came at the same instant, five minutes ago.
INSERT INTO dispatcher_callqueue (id, lane_id, queue, state, created_at, scheduled_at)
SELECT id_of(now() - interval '1 hour'), lane.id, lane.queue, 'scheduled', now() - interval '1 hour',
       now() - interval '5 minutes'
  FROM generate_series(1, :due) AS n
  JOIN dispatcher_lane AS lane ON lane.id = 2 * (1 + n % (:tenants / 2));
ANALYZE;
