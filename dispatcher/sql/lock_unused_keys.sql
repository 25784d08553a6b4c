-- lock_unused_keys: lock keys against whoever would make a lane of them; those that somebody has locked are skipped.
SELECT key.id
  FROM dispatcher_ratelimitkey AS key
 WHERE key.id = ANY (%(ids)s::bigint[])
 ORDER BY key.id
   FOR UPDATE SKIP LOCKED
