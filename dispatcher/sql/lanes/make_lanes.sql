-- make_lanes: make the lanes that do not exist yet for these kinds of calls, whose keys all exist.
-- The keys are locked against removal: a lane of a key that is gone would be limited by the others alone.
-- In one order for all who make them: they wait for each other at the unique index.
-- `queues`, `deliveries`: those whose delivery the settings give; a queue that has a row keeps its own.
WITH opened AS (
    INSERT INTO dispatcher_queue (name, delivery, on_full, warn_at)
    SELECT queue.name, queue.delivery, 'reject', 0.8
      FROM unnest(%(queues)s::text[], %(deliveries)s::text[]) AS queue (name, delivery)
     ORDER BY queue.name
        ON CONFLICT (name) DO NOTHING
)
INSERT INTO dispatcher_lane (queue, priority, on_limit, key_ids)
SELECT kind.queue, kind.priority, kind.on_limit, named.ids
  FROM {{lane_kinds}}
 CROSS JOIN LATERAL (
       SELECT COALESCE(array_agg(locked.id ORDER BY locked.id), '{}') AS ids
         FROM (SELECT key.id
                 FROM dispatcher_ratelimitkey AS key
                WHERE key.name = ANY (kind.names)
                ORDER BY key.id
                  FOR KEY SHARE) AS locked) AS named
 WHERE cardinality(named.ids) = cardinality(kind.names)
 ORDER BY kind.queue, kind.priority, kind.on_limit, named.ids
    ON CONFLICT ON CONSTRAINT lane_is_one_per_kind DO NOTHING
