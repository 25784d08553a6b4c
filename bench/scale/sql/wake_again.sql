-- wake_again: another waiting call in a hundred lanes of awake.sql: those asleep first, which were served last.
WITH chosen AS (
    SELECT lane_id AS id FROM dispatcher_lanesite WHERE queue = 'awake' ORDER BY place NULLS FIRST, served_at DESC, lane_id LIMIT 100
), sent AS (
    INSERT INTO dispatcher_callqueue
           (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at)
    SELECT (lpad(to_hex((EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(md5(random()::text), 14))::uuid,
           id, 'bench.scale.tasks.nothing', '[]', '{}', '{}', 'awake', 0, 'wait', '{}', 'available', 0, '[]',
           clock_timestamp()
      FROM chosen
)
UPDATE dispatcher_lanesite AS site SET place = 0 FROM chosen WHERE site.lane_id = chosen.id;
