-- ended_long_ago: a thousand calls that are past the retention of what was completed.
INSERT INTO dispatcher_callqueue
       (id, lane_id, queue, state, attempt, created_at, dispatched_at, published_at, started_at, finished_at)
SELECT id_of(at), 2, 'q00', 'completed', 1, at, at, at, at, at
  FROM generate_series(1, 1000) AS n
 CROSS JOIN LATERAL (SELECT now() - interval '9 days' + n * interval '1 second' AS at) AS past;
