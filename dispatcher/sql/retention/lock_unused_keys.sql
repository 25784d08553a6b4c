-- lock_unused_keys: lock keys against transactions that make lanes of them; locked keys are skipped.
SELECT key.id
  FROM dispatcher_ratelimitkey AS key
 WHERE key.id = ANY (%(ids)s::bigint[])
 ORDER BY key.id
   FOR UPDATE SKIP LOCKED
