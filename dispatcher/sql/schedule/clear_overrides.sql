-- clear_overrides: take overrides off keys that have ended. For people who read the rows: the limits in force follow
-- from `override_until`, and a note has had the key looked at when it came. A key that another transaction has locked
-- is left to the next tick. Relies on the index key_override_ends.
UPDATE dispatcher_ratelimitkey AS key
   SET {{override_cleared}}, limited_at = GREATEST(key.limited_at, key.override_until)
 -- An array: joined, the planner may read the whole table to find these.
 WHERE key.id = ANY (ARRAY(
       SELECT ended.id
         FROM dispatcher_ratelimitkey AS ended
        WHERE ended.override_until <= (SELECT {{now}})
        ORDER BY ended.override_until
        LIMIT 100
          FOR NO KEY UPDATE SKIP LOCKED))
