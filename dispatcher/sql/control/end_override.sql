-- end_override: put a key's own limits in force again, whatever time its override was to end.
-- The time at which the override would have opened the key no longer counts: the next pass works it out again.
UPDATE dispatcher_ratelimitkey
   SET override_until = NULL, override_concurrency = NULL, override_rate_limit = NULL, override_rate_period = NULL,
       override_throttle_limit = NULL, override_throttle_period = NULL, limited_at = clock_timestamp(),
       admissions = admissions + 1,
       opens_at = CASE WHEN opens_at IS NOT NULL THEN LEAST(opens_at, clock_timestamp()) END
 WHERE name = %(name)s::text AND override_until IS NOT NULL
RETURNING id
