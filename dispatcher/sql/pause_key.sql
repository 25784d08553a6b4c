-- pause_key: let nothing start under this key, or let it start again. It waits for a pass that holds the key.
UPDATE dispatcher_ratelimitkey
   SET is_paused = %(is_paused)s::bool, blocked_until = CASE WHEN %(is_paused)s::bool THEN blocked_until END
 WHERE name = %(name)s::text
RETURNING id
