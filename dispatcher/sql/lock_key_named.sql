-- lock_key_named: lock a key that limits starts in a window, by its name; what it has spent must be counted in a later
-- statement, whose snapshot is newer than the lock.
SELECT key.id
  FROM dispatcher_ratelimitkey AS key
 WHERE key.name = %(name)s::text AND key.rate_limit IS NOT NULL
   FOR NO KEY UPDATE
