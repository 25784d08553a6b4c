-- send_calls: write calls into their lanes, in the order given; nothing at all if a key or a lane is missing.
-- Positions are drawn in that order, so a lane starts them in it. Relies on the unique indexes of key names and lane kinds.
WITH kind AS MATERIALIZED (
    SELECT kind.number, kind.queue, kind.priority, kind.on_limit, lane.id AS lane_id
      FROM jsonb_to_recordset(%(kinds)s::jsonb) AS kind (number int, queue text, priority smallint, on_limit text, names text[])
     CROSS JOIN LATERAL (
           SELECT COALESCE(array_agg(key.id ORDER BY key.id), '{}') AS ids
             FROM dispatcher_ratelimitkey AS key
            WHERE key.name = ANY (kind.names)) AS named
      JOIN dispatcher_lane AS lane
        ON lane.queue = kind.queue AND lane.priority = kind.priority
       AND lane.on_limit = kind.on_limit AND lane.key_ids = named.ids
     WHERE cardinality(named.ids) = cardinality(kind.names)
), clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
)
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, call_data, meta, queue, priority, on_limit, costs, state, retry,
        scheduled_at, expires_at, timeout, visibility, unique_key, envelope, attempt, created_at, errors)
SELECT draft.id, kind.lane_id, draft.task, draft.args, draft.kwargs, draft.call_data, draft.meta,
       kind.queue, kind.priority, kind.on_limit, draft.costs,
       CASE WHEN draft.is_pending THEN 'pending' WHEN draft.scheduled_at > clock.now THEN 'scheduled' ELSE 'available' END,
       draft.retry, draft.scheduled_at, draft.expires_at, draft.timeout, draft.visibility, draft.unique_key,
       draft.envelope, 0, clock.now, '[]'
  FROM unnest(%(ids)s::uuid[], %(kind_of)s::int[], %(task)s::text[], %(args)s::jsonb[], %(kwargs)s::jsonb[],
              %(call_data)s::jsonb[], %(meta)s::jsonb[], %(costs)s::jsonb[], %(retry)s::jsonb[],
              %(scheduled_at)s::timestamptz[], %(expires_at)s::timestamptz[], %(timeout)s::interval[],
              %(visibility)s::interval[], %(unique_key)s::text[], %(envelope)s::jsonb[], %(is_pending)s::bool[])
       WITH ORDINALITY
       AS draft (id, kind, task, args, kwargs, call_data, meta, costs, retry, scheduled_at, expires_at, timeout,
                 visibility, unique_key, envelope, is_pending, turn)
  JOIN kind ON kind.number = draft.kind
 CROSS JOIN clock
 WHERE (SELECT count(*) FROM kind) = jsonb_array_length(%(kinds)s::jsonb)
 ORDER BY draft.turn
RETURNING id, position, lane_id, state, created_at
