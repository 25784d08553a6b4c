-- limit_key: change the stored limits of a key, in force from the next admission on.
UPDATE dispatcher_ratelimitkey
   SET concurrency = %(concurrency)s::int, rate_limit = %(rate_limit)s::int, rate_period = %(rate_period)s::interval,
       throttle_limit = %(throttle_limit)s::int, throttle_period = %(throttle_period)s::interval,
       limited_at = clock_timestamp(), admissions = admissions + 1
 WHERE name = %(name)s::text
RETURNING id
