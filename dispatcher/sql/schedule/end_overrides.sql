-- end_overrides: put the keys' own limits in force again where an override has run out.
-- A key that somebody else has locked is left to the next tick: its own limits are in force all the same. Relies on the
-- index key_override_ends.
WITH ended AS MATERIALIZED (
    SELECT id
      FROM dispatcher_ratelimitkey
     WHERE override_until <= (SELECT {{now}})
     ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dispatcher_ratelimitkey AS key
   SET {{override_cleared}}, {{limits_changed(key)}}
 -- An array: joined, the planner may read the whole table to find these.
 WHERE key.id = ANY (ARRAY(SELECT ended.id FROM ended))
RETURNING key.id
