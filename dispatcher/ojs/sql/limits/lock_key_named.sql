-- lock_key_named: lock a key by its name; its use must be counted in a later statement, whose snapshot is newer than
-- the
-- lock.
SELECT key.id
  FROM dispatcher_ratelimitkey AS key
 WHERE key.name = %(name)s::text
   FOR NO KEY UPDATE
