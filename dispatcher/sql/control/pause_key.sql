-- pause_key: let nothing start under this key, or let it start again and leave a note for it. It waits for a trip that
-- holds the key. A resume ends a block, too.
WITH switched AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET is_paused = %(is_paused)s::bool, blocked_until = CASE WHEN %(is_paused)s::bool THEN blocked_until END
     WHERE name = %(name)s::text
    RETURNING key.id, key.is_paused
), opened AS (
    SELECT switched.id FROM switched WHERE NOT switched.is_paused
), {{keys_noted(opened)}}
SELECT id FROM switched
