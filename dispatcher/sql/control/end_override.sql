-- end_override: put a key's own limits in force again, whatever time its override was to end.
UPDATE dispatcher_ratelimitkey AS key
   SET {{override_cleared}}, {{limits_changed(key)}}
 WHERE name = %(name)s::text AND override_until IS NOT NULL
RETURNING id
