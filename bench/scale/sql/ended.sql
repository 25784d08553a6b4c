-- ended: so many more calls that ended within the last six days.
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, kwargs, queue, state, attempt, created_at, dispatched_at, published_at, started_at, finished_at)
SELECT id_of(at), 1 + n % :tenants, 'bench.scale.tasks.task_' || n % 20, '{"order": 4711}', 'q00', 'completed', 1,
       at, at, at, at, at + interval '1 second'
  FROM (SELECT n, now() - interval '1 hour' - (:more_ended - n) * (interval '6 days' / :more_ended) AS at
          FROM generate_series(1, :more_ended) AS n) AS ended;
ANALYZE;
