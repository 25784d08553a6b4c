-- block_keys: let nothing start under these keys before this time; a later block is never shortened. Leaves a note for
-- each at its end.
WITH blocked AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET blocked_until = GREATEST(key.blocked_until, {{now}} + %(wait)s::interval)
      FROM (SELECT id
              FROM dispatcher_ratelimitkey
             WHERE name = ANY (%(names)s::text[])
             ORDER BY id
               FOR NO KEY UPDATE) AS locked
     WHERE key.id = locked.id
    RETURNING key.id, key.name, key.blocked_until
), noted AS (
    INSERT INTO dispatcher_note (at, key_id)
    SELECT blocked.blocked_until, blocked.id
      FROM blocked
     WHERE NOT EXISTS (SELECT FROM dispatcher_note AS earlier
                        WHERE earlier.key_id = blocked.id AND earlier.at = blocked.blocked_until)
)
SELECT id, name, blocked_until FROM blocked
