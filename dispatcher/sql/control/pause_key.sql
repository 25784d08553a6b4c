-- pause_key: let nothing start under this key, or let it start again. It waits for a pass that holds the key.
-- With the end of a block, the time at which it would have opened the key no longer counts.
UPDATE dispatcher_ratelimitkey
   SET is_paused = %(is_paused)s::bool, blocked_until = CASE WHEN %(is_paused)s::bool THEN blocked_until END,
       opens_at = CASE WHEN %(is_paused)s::bool THEN opens_at
                       WHEN opens_at IS NOT NULL THEN LEAST(opens_at, clock_timestamp()) END
 WHERE name = %(name)s::text
RETURNING id
