-- wake_again: another waiting call in a hundred lanes of awake.sql: those asleep first, which were served last.
WITH chosen AS (
    SELECT id FROM dispatcher_lane WHERE queue = 'awake' ORDER BY is_awake, served_at DESC, id LIMIT 100
), sent AS (
    INSERT INTO dispatcher_callqueue
           (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at)
    SELECT (lpad(to_hex((EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(md5(random()::text), 14))::uuid,
           id, 'bench.scale.tasks.nothing', '[]', '{}', '{}', 'awake', 0, 'wait', '{}', 'available', 0, '[]',
           clock_timestamp()
      FROM chosen
)
UPDATE dispatcher_lane AS lane SET is_awake = true FROM chosen WHERE lane.id = chosen.id;
