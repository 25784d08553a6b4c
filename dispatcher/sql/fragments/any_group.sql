-- any_group: whether any key is a group. Reads the first entry of the index key_group, which is empty where none is.
(SELECT key_group.id
   FROM dispatcher_ratelimitkey AS key_group
  WHERE key_group.is_group
  ORDER BY key_group.name
  LIMIT 1) IS NOT NULL
