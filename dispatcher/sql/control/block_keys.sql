-- block_keys: let nothing start under these keys before this time; a later block is never shortened. No lock is waited
-- for: the block of a key that another transaction keeps locked is a row, which the next trip that locks the key writes
-- there. Leaves a note for each at its end, and one at once for those that were locked.
WITH wanted AS MATERIALIZED (
    SELECT key.id, key.name, asked.now, asked.now + %(wait)s::interval AS until,
           GREATEST(key.blocked_until, asked.now + %(wait)s::interval) AS blocked_until
      FROM dispatcher_ratelimitkey AS key
     CROSS JOIN (SELECT {{now}} AS now) AS asked
     WHERE key.name = ANY (%(names)s::text[])
), free AS MATERIALIZED (
    SELECT id
      FROM dispatcher_ratelimitkey
     WHERE id = ANY (ARRAY(SELECT wanted.id FROM wanted))
     ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
), blocked AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET blocked_until = GREATEST(key.blocked_until, wanted.until)
      FROM wanted
      JOIN free ON free.id = wanted.id
     WHERE key.id = wanted.id
    RETURNING key.id, key.name, key.blocked_until
), held AS (
    SELECT wanted.id, wanted.name, wanted.now, wanted.until, wanted.blocked_until
      FROM wanted
     WHERE wanted.id NOT IN (SELECT free.id FROM free)
), kept AS (
    INSERT INTO dispatcher_block (key_id, until)
    SELECT held.id, held.until FROM held
), noted AS (
    INSERT INTO dispatcher_note (at, key_id)
    SELECT blocked.blocked_until, blocked.id FROM blocked
     UNION ALL
    SELECT note.at, held.id FROM held CROSS JOIN unnest(ARRAY[held.now, held.blocked_until]) AS note (at)
)
SELECT blocked.id, blocked.name, blocked.blocked_until FROM blocked
 UNION ALL
SELECT held.id, held.name, held.blocked_until FROM held
