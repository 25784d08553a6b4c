-- key_ids_of(names): the ids of the keys with these names, in order, and the names in that order. Relies on the unique
-- index of key names.
SELECT COALESCE(array_agg(key.id), '{}') AS ids, array_agg(key.name) AS keys
  FROM (SELECT key.id, key.name
          FROM dispatcher_ratelimitkey AS key
         WHERE key.name = ANY ({{names}})
         ORDER BY key.id) AS key
