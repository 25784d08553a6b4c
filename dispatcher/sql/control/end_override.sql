-- end_override: put a key's own limits in force again, whatever time its override was to end, and leave a note for it.
WITH ended AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET {{override_cleared}}, limited_at = {{now}}
     WHERE name = %(name)s::text AND override_until IS NOT NULL
    RETURNING key.id
), {{keys_noted(ended)}}
SELECT id FROM ended
