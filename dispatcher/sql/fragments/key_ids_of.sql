-- key_ids_of(names): the ids of the keys with these names, in order. Relies on the unique index of key names.
SELECT COALESCE(array_agg(key.id ORDER BY key.id), '{}') AS ids
  FROM dispatcher_ratelimitkey AS key
 WHERE key.name = ANY ({{names}})
