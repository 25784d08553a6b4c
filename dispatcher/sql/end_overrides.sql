-- end_overrides: put the keys' own limits in force again where an override has run out, or was ended by name.
-- Relies on the index key_override_ends.
UPDATE dispatcher_ratelimitkey AS key
   SET override_until = NULL, override_concurrency = NULL, override_rate_limit = NULL, override_rate_period = NULL,
       override_throttle_limit = NULL, override_throttle_period = NULL, limited_at = clock_timestamp(),
       admissions = key.admissions + 1
  FROM (SELECT id
          FROM dispatcher_ratelimitkey
         WHERE override_until IS NOT NULL
           AND (name = %(name)s::text OR override_until <= COALESCE(%(now)s::timestamptz, clock_timestamp()))
         ORDER BY id
           FOR NO KEY UPDATE) AS locked
 WHERE key.id = locked.id
RETURNING key.id
