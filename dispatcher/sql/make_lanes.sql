-- make_lanes: make the lanes that do not exist yet for these kinds of calls, whose keys all exist.
-- In one order for all who make them: they wait for each other at the unique index.
INSERT INTO dispatcher_lane (queue, priority, on_limit, key_ids)
SELECT kind.queue, kind.priority, kind.on_limit, named.ids
  FROM jsonb_to_recordset(%(kinds)s::jsonb) AS kind (number int, queue text, priority smallint, on_limit text, names text[])
 CROSS JOIN LATERAL (
       SELECT COALESCE(array_agg(key.id ORDER BY key.id), '{}') AS ids
         FROM dispatcher_ratelimitkey AS key
        WHERE key.name = ANY (kind.names)) AS named
 WHERE cardinality(named.ids) = cardinality(kind.names)
 ORDER BY kind.queue, kind.priority, kind.on_limit, named.ids
    ON CONFLICT ON CONSTRAINT lane_is_one_per_kind DO NOTHING
