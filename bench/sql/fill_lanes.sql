-- fill_lanes: let so many more calls wait in every one of these lanes; their ids ascend as those of real calls do.
WITH ready AS (
    UPDATE dispatcher_lanesite AS site
       SET place = 0
     WHERE site.lane_id = ANY (%(lanes)s::bigint[]) AND site.place IS NULL
)
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, key_costs,
        state, attempt, created_at, errors)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || '7' || substr(md5(random()::text), 14))::uuid,
       lane.id, 'bench.tasks.nothing', '[]', '{}', '{}', lane.queue, lane.priority, lane.on_limit, '{}',
       %(costs)s::int[], 'available', 0, clock_timestamp(), '[]'
  FROM generate_series(1, %(calls)s::int) AS turn
 CROSS JOIN dispatcher_lane AS lane
 WHERE lane.id = ANY (%(lanes)s::bigint[])
