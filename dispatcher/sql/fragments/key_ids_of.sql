-- key_ids_of(names): the ids of the keys with these names, in order, and the names in that order. Each is looked for by
-- itself: a plan that a session made while there were few keys would read them all. Relies on the unique index of key
-- names.
SELECT COALESCE(array_agg(key.id), '{}') AS ids, array_agg(key.name) AS keys
  FROM (SELECT key.id, key.name
          FROM unnest({{names}}) AS named_key (name)
         CROSS JOIN LATERAL (
               SELECT key.id, key.name
                 FROM dispatcher_ratelimitkey AS key
                WHERE key.name = named_key.name
                LIMIT 1) AS key
         ORDER BY key.id) AS key
