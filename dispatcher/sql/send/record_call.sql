-- record_call: write one call of a direct queue that costs 1 of each key and may start now and ever after. A worker of
-- the queue admits it. Nothing is written if a key or the lane is missing, or the queue is not direct.
-- wake_for_call follows, after the commit. Relies on the unique indexes of key names and lane kinds.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), lane AS MATERIALIZED (
    SELECT lane.id
      FROM dispatcher_lane AS lane
     WHERE lane.queue = %(queue)s AND lane.priority = %(priority)s::smallint
       AND lane.on_limit = %(on_limit)s::text
       AND lane.key_ids = ARRAY(
               SELECT named.id
                 FROM (SELECT key.id
                         FROM dispatcher_ratelimitkey AS key
                        WHERE key.name = ANY (%(names)s::text[])
                        -- All of them; see send_call.
                        LIMIT cardinality(%(names)s::text[]) + 1) AS named
                ORDER BY named.id)
       AND cardinality(lane.key_ids) = cardinality(%(names)s::text[])
       AND {{queue_delivery(%(queue)s)}} = 'direct'
       -- Against its removal; neither passes nor other senders wait for that.
       FOR KEY SHARE
)
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, call_data, meta, headers, options, queue, priority, on_limit, costs, state,
        retry, attempt, created_at, errors)
SELECT %(id)s::uuid, lane.id, %(task)s::text, %(args)s::jsonb, %(kwargs)s::jsonb, %(call_data)s::jsonb,
       %(meta)s::jsonb, %(headers)s::jsonb, %(options)s::jsonb, %(queue)s::text, %(priority)s, %(on_limit)s, '{}',
       'available', %(retry)s::jsonb, 0, clock.now, '[]'
  FROM lane
 CROSS JOIN clock
RETURNING id, position, lane_id, state, created_at
