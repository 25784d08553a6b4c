-- block_keys: let nothing start under these keys before this time; a later block is never shortened.
UPDATE dispatcher_ratelimitkey AS key
   SET blocked_until = GREATEST(key.blocked_until, {{now}} + %(wait)s::interval)
  FROM (SELECT id
          FROM dispatcher_ratelimitkey
         WHERE id = ANY (%(keys)s::bigint[]) OR name = ANY (%(names)s::text[])
         ORDER BY id
           FOR NO KEY UPDATE) AS locked
 WHERE key.id = locked.id
RETURNING key.id, key.name, key.blocked_until
