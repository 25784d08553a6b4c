-- limit_key: change the stored limits of a key, in force from the next admission on; a strategy not named stays as it is.
-- From now on it is a person's, and is kept even if it is unused.
-- The time at which the former limits would have opened the key no longer counts: the next pass works it out again.
UPDATE dispatcher_ratelimitkey
   SET concurrency = CASE WHEN %(has_concurrency)s::bool THEN %(concurrency)s::int ELSE concurrency END,
       rate_limit = CASE WHEN %(has_rate)s::bool THEN %(rate_limit)s::int ELSE rate_limit END,
       rate_period = CASE WHEN %(has_rate)s::bool THEN %(rate_period)s::interval ELSE rate_period END,
       throttle_limit = CASE WHEN %(has_throttle)s::bool THEN %(throttle_limit)s::int ELSE throttle_limit END,
       throttle_period = CASE WHEN %(has_throttle)s::bool THEN %(throttle_period)s::interval ELSE throttle_period END,
       is_from_template = false, limited_at = clock_timestamp(), admissions = admissions + 1,
       opens_at = CASE WHEN opens_at IS NOT NULL THEN LEAST(opens_at, clock_timestamp()) END
 WHERE name = %(name)s::text
RETURNING id
