-- send_calls: write calls into their lanes, in the order given, and a note for each lane of a call that may start now:
-- the next trip makes the lane ready if it sleeps. Nothing at all is written if a key or a lane is missing, or a key
-- has a limit per worker and the broker delivers the queue (`is_mixed`).
-- With `may_defer`, calls whose lane is missing are written without one, with what makes it (`placement`, see
-- place_calls).
-- Positions are drawn in that order, so a lane starts them in it. Costs are in the order of the lane's keys.
-- It is the only statement that writes calls, also for one; wake_workers follows, after the commit. The note is written
-- whatever the place of the lane: who puts it to sleep at this moment does not see these calls yet.
-- The lanes are locked against removal until the commit; neither trips nor other senders wait for that.
-- Relies on the unique indexes of key names and lane kinds.
WITH kind AS MATERIALIZED (
    SELECT kind.number, kind.queue, kind.priority, kind.on_limit, kind.placement, lane.id AS lane_id, lane.key_ids,
           NOT (SELECT %(is_eager)s::bool) AND {{queue_delivery(kind.queue)}} = 'broker'
           AND (SELECT count(*)
                  FROM unnest(kind.names || ('queue:' || kind.queue)) AS spent (name)
                 CROSS JOIN LATERAL (
                       SELECT COALESCE(key.per_worker, key.override_per_worker) AS per_worker
                         FROM dispatcher_ratelimitkey AS key
                        WHERE key.name = spent.name
                        LIMIT 1) AS key
                 WHERE key.per_worker IS NOT NULL) > 0 AS is_mixed
      FROM jsonb_to_recordset(%(kinds)s::jsonb)
        AS kind (number int, queue text, priority smallint, on_limit text, names text[], placement jsonb)
     CROSS JOIN LATERAL (
           {{key_ids_of(kind.names)}}) AS named
      LEFT JOIN LATERAL (
           SELECT lane.id, lane.key_ids
             FROM dispatcher_lane AS lane
            WHERE lane.queue = kind.queue AND lane.priority = kind.priority AND lane.on_limit = kind.on_limit
              AND lane.key_ids = named.ids AND cardinality(named.ids) = cardinality(kind.names)
            LIMIT 1
              FOR KEY SHARE SKIP LOCKED) AS lane ON true
), {{clock}}, written AS (
    INSERT INTO dispatcher_callqueue
           (id, lane_id, placement, task, args, kwargs, call_data, meta, headers, options, queue, priority, on_limit,
            costs, key_costs, state, retry, scheduled_at, expires_at, attempt, created_at, errors)
    SELECT draft.id, kind.lane_id, CASE WHEN kind.lane_id IS NULL THEN kind.placement END,
           draft.task, draft.args, draft.kwargs, draft.call_data, draft.meta, draft.headers, draft.options,
           kind.queue, kind.priority, kind.on_limit, draft.costs,
           CASE WHEN draft.costs <> '{}' THEN {{costs_of_keys(draft.costs, kind.key_ids)}} END,
           CASE WHEN draft.is_pending THEN 'pending'
                WHEN times.scheduled_at > clock.now THEN 'scheduled'
                ELSE 'available' END,
           draft.retry, times.scheduled_at, times.expires_at, 0, clock.now, '[]'
      FROM unnest((SELECT %(ids)s::uuid[]), %(kind_of)s::int[], %(task)s::text[], %(args)s::jsonb[],
                  %(kwargs)s::jsonb[], %(call_data)s::jsonb[], %(meta)s::jsonb[], %(headers)s::jsonb[],
                  %(options)s::jsonb[], %(costs)s::jsonb[], %(retry)s::jsonb[],
                  %(scheduled_at)s::timestamptz[], %(expires_at)s::timestamptz[],
                  %(scheduled_in)s::interval[], %(expires_in)s::interval[], %(is_pending)s::bool[])
           WITH ORDINALITY
           AS draft (id, kind, task, args, kwargs, call_data, meta, headers, options, costs, retry, scheduled_at,
                     expires_at, scheduled_in, expires_in, is_pending, turn)
      JOIN kind ON kind.number = draft.kind
     CROSS JOIN clock
     CROSS JOIN LATERAL (
           SELECT COALESCE(draft.scheduled_at, clock.now + draft.scheduled_in) AS scheduled_at,
                  COALESCE(draft.expires_at, clock.now + draft.expires_in) AS expires_at) AS times
     WHERE (SELECT %(may_defer)s::bool) OR NOT EXISTS (SELECT FROM kind WHERE kind.lane_id IS NULL OR kind.is_mixed)
     ORDER BY draft.turn
    RETURNING id, position, lane_id, key_costs, state, created_at, scheduled_at, expires_at
), moved AS (
    SELECT written.lane_id, written.position FROM written WHERE written.state = 'available'
), {{lanes_noted(moved, false)}}
SELECT id, position, lane_id, key_costs, state, created_at, scheduled_at, expires_at FROM written
