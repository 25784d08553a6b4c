-- fill: tenants with a key and a lane each, and their calls, as a system in use has them.
-- Most tenants share queue q00, the others are spread over the rest; q23 is fetched from over HTTP. Odd tenants
-- are busy: one call runs, which takes all the room, and the others wait in a lane that is parked on the key; tenant 1
-- has half of all that wait. Even tenants are idle: there is ample room, and the lane sleeps.

-- What a call is, where a statement says nothing else. Its id is of the time of sending.
CREATE FUNCTION id_of(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE RETURN (
    lpad(to_hex((EXTRACT(EPOCH FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(random()::text), 14))::uuid;
ALTER TABLE dispatcher_callqueue
      ALTER id SET DEFAULT id_of(clock_timestamp()), ALTER created_at SET DEFAULT clock_timestamp(),
      ALTER task SET DEFAULT 'bench.scale.tasks.nothing', ALTER args SET DEFAULT '[]', ALTER kwargs SET DEFAULT '{}',
      ALTER meta SET DEFAULT '{}', ALTER priority SET DEFAULT 0, ALTER on_limit SET DEFAULT 'wait',
      ALTER costs SET DEFAULT '{}', ALTER state SET DEFAULT 'available', ALTER attempt SET DEFAULT 0,
      ALTER errors SET DEFAULT '[]';
INSERT INTO dispatcher_queue (name, delivery, max_depth, on_full, warn_at)
SELECT 'q' || lpad(n::text, 2, '0'), CASE WHEN n = 23 THEN 'http' ELSE 'broker' END, CASE WHEN n = 0 THEN 100000000 END, 'reject', 0.8
  FROM generate_series(0, 23) AS n;

INSERT INTO dispatcher_ratelimitkey (id, name, is_paused, concurrency, rate_limit, rate_period)
SELECT n, 'tenant:' || n, false, CASE WHEN n % 2 = 1 THEN 1 ELSE 100000 END,
       1000000, interval '1 hour'
  FROM generate_series(1, :tenants) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT n, 'q' || lpad(number::text, 2, '0'), 0, 'wait', ARRAY[n]
  FROM generate_series(1, :tenants) AS n
 CROSS JOIN LATERAL (
       SELECT CASE WHEN n % 4 = 0 THEN n / 4 % 24 WHEN n % 8 = 1 AND n > 1 THEN 1 + n / 8 % 22 ELSE 0 END AS number) AS queue;

-- Ten keys with room, whose lanes are served in each busy tick.
INSERT INTO dispatcher_ratelimitkey (id, name, is_paused, concurrency)
SELECT 9000000 + n, 'work:' || n, false, 10 FROM generate_series(0, 9) AS n;
INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT 9000000 + n, 'q01', 0, 'wait', ARRAY[9000000 + n] FROM generate_series(0, 9) AS n;

-- Each lane has got its site; those of tenants that are busy are parked, that of the queue that is fetched from is ready.
UPDATE dispatcher_lanesite
   SET place = CASE WHEN lane_id = 92 OR lane_id >= 9000000 THEN 0 ELSE lane_id END
 WHERE lane_id % 2 = 1 OR lane_id = 92 OR lane_id >= 9000000;

-- What has ended: over the last six and a half days, all within its retention.
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, kwargs, queue, state, attempt, created_at, dispatched_at, published_at, started_at,
        finished_at, reason, error)
SELECT id_of(at), lane.id, 'bench.scale.tasks.task_' || n % 20, '{"order": 4711}', lane.queue, state, 1, at, at, at, at,
       at + interval '1 second', CASE WHEN state = 'discarded' THEN 'failed' END,
       CASE WHEN state = 'discarded'
            THEN jsonb_build_object('type', 'ValueError', 'message', 'no', 'attempt', 1, 'occurred_at', at) END
  FROM (SELECT n, now() - interval '1 hour' - (:ended - n) * (interval '156 hours' / :ended) AS at,
               CASE WHEN n % 50 = 0 THEN 'discarded' WHEN n % 50 = 1 THEN 'cancelled' ELSE 'completed' END AS state
          FROM generate_series(1, :ended) AS n) AS ended
  JOIN dispatcher_lane AS lane ON lane.id = 1 + ended.n % :tenants;

-- What runs: one call of each busy tenant.
WITH running AS (
    INSERT INTO dispatcher_callqueue
           (id, lane_id, queue, state, attempt, created_at, dispatched_at, published_at, started_at, ticket)
    SELECT id_of(sent_at), id, queue, 'active', 1, sent_at, at, at, at, gen_random_uuid()
      FROM dispatcher_lane,
           (SELECT now() - interval '10 minutes' AS sent_at, now() - interval '9 minutes' AS at) AS past
     WHERE id <= :tenants AND id % 2 = 1
    RETURNING id, lane_id
)
INSERT INTO dispatcher_slot (call_id, key_id, cost, started_at, lease_until)
SELECT id, lane_id, 1, now() - interval '9 minutes', now() + interval '10 days' FROM running;

-- What waits: half of it of tenant 1, a twentieth to be fetched, a twentieth for its time, the rest of the busy ones.
INSERT INTO dispatcher_callqueue (id, lane_id, task, kwargs, queue, state, created_at, scheduled_at)
SELECT id_of(at), lane.id, 'bench.scale.tasks.task_' || n % 20, '{"order": 4711}', lane.queue,
       CASE WHEN turn = 1 THEN 'scheduled' ELSE 'available' END, at,
       CASE WHEN turn = 1 THEN now() + interval '1 day' + n * interval '10 milliseconds' END
  FROM (SELECT n, n % 20 AS turn, now() - (:waiting - n) * interval '1 millisecond' AS at,
               CASE WHEN n % 20 = 0 THEN 92
                    WHEN n % 20 = 1 THEN 2 * (1 + n / 20 % (:tenants / 2))
                    WHEN n % 2 = 0 THEN 1
                    ELSE 1 + 2 * (n / 2 % (:tenants / 2)) END AS lane_id
          FROM generate_series(1, :waiting) AS n) AS waiting
  JOIN dispatcher_lane AS lane ON lane.id = waiting.lane_id;

-- The starts that the tenants' windows count.
INSERT INTO dispatcher_start (key_id, at, total, cost, last_cost)
SELECT key, now() - interval '30 minutes' + turn * interval '1 second', turn, 1, 1
  FROM generate_series(1, :tenants) AS key
 CROSS JOIN generate_series(1, 100) AS turn;

INSERT INTO dispatcher_eventlogentry (kind, queue, call_id, data, at)
SELECT 'rate_limit.exceeded', 'q00', md5(n::text)::uuid,
       jsonb_build_object('key', 'tenant:' || n % :tenants, 'job_id', md5(n::text)::uuid),
       now() - n * (interval '156 hours' / (:tenants * 100))
  FROM generate_series(1, :tenants * 100) AS n;

-- A tenth of the tenants runs a workflow, which waits for a call of tenant 1; ten times as many have ended.
WITH made AS (
    INSERT INTO dispatcher_ojs_workflow (id, name, kind, state, plan, callbacks, results, created_at, ended_at)
    SELECT id_of(now() + n * interval '1 millisecond'), 'order', 'chain',
           CASE WHEN n % 11 = 0 THEN 'running' ELSE 'completed' END,
           '[{"type": "mail.send", "args": [], "options": {"queue": "q23"}}]', '{}', '{}', now() - interval '1 hour',
           CASE WHEN n % 11 <> 0 THEN now() - interval '1 minute' END
      FROM generate_series(1, :tenants / 10 * 11) AS n
    RETURNING id, state
), parts AS (
    SELECT id, row_number() OVER (ORDER BY id) AS number FROM made WHERE state = 'running'
), calls AS (
    SELECT id, row_number() OVER (ORDER BY id) AS number
      FROM (SELECT id FROM dispatcher_callqueue WHERE lane_id = 1 AND state = 'available' AND oversized_key_id IS NULL
             ORDER BY position DESC LIMIT :tenants / 10) AS last
)
INSERT INTO dispatcher_ojs_part (workflow_id, role, place, call, outcome)
SELECT parts.id, 'step', 0, calls.id, 'open' FROM parts JOIN calls ON calls.number = parts.number;

INSERT INTO dispatcher_worker
       (id, name, host, pid, pool, processes, queues, tasks, started_at, seen_at, serves_until)
SELECT gen_random_uuid(), 'celery@' || n, 'host' || n, n, 'prefork', 8, ARRAY['q00'], ARRAY['bench.scale.tasks.nothing'],
       now() - interval '1 day', now() + interval '1 day', now() + interval '10 days'
  FROM generate_series(1, 100 + :tenants / 100) AS n;

INSERT INTO dispatcher_ojs_pullworker (id, name, queues, started_at, seen_at)
SELECT gen_random_uuid(), 'worker-' || n, ARRAY['q23'], now() - interval '1 day', now()
  FROM generate_series(1, 100 + :tenants / 100) AS n;

-- Those that the figures make are numbered from here on.
SELECT setval(pg_get_serial_sequence('dispatcher_ratelimitkey', 'id'), 10000000),
       setval(pg_get_serial_sequence('dispatcher_lane', 'id'), 10000000);
ANALYZE;
