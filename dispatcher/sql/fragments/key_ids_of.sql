-- key_ids_of(names): the ids of the keys with these names, in order. Each is looked for by itself: a plan that a
-- session made while there were few keys would read them all. Relies on the unique index of key names.
SELECT COALESCE(array_agg(key.id ORDER BY key.id), '{}') AS ids
  FROM unnest({{names}}) AS named_key (name)
 CROSS JOIN LATERAL (
       SELECT key.id FROM dispatcher_ratelimitkey AS key WHERE key.name = named_key.name LIMIT 1) AS key
