-- end_overrides: put the keys' own limits in force again where an override has run out.
-- The time at which the override would have opened the key no longer counts: the next pass works it out again.
-- A key that somebody else has locked is left to the next tick: its own limits are in force all the same. Relies on the
-- index key_override_ends.
WITH ended AS MATERIALIZED (
    SELECT id
      FROM dispatcher_ratelimitkey
     WHERE override_until <= (SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()))
     ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dispatcher_ratelimitkey AS key
   SET override_until = NULL, override_concurrency = NULL, override_rate_limit = NULL, override_rate_period = NULL,
       override_throttle_limit = NULL, override_throttle_period = NULL, limited_at = clock_timestamp(),
       admissions = key.admissions + 1,
       opens_at = CASE WHEN key.opens_at IS NOT NULL THEN LEAST(key.opens_at, clock_timestamp()) END
 -- An array: joined, the planner may read the whole table to find these.
 WHERE key.id = ANY (ARRAY(SELECT ended.id FROM ended))
RETURNING key.id
