-- make_keys: make the keys that do not exist yet; a stored policy is never changed here.
INSERT INTO dispatcher_ratelimitkey
       (name, concurrency, rate_limit, rate_period, throttle_limit, throttle_period, is_paused, is_from_template)
SELECT made.name, made.concurrency, made.rate_limit, made.rate_period, made.throttle_limit, made.throttle_period, false,
       made.is_from_template
  FROM unnest(%(name)s::text[], %(concurrency)s::int[], %(rate_limit)s::int[], %(rate_period)s::interval[],
              %(throttle_limit)s::int[], %(throttle_period)s::interval[], %(is_from_template)s::bool[])
       AS made (name, concurrency, rate_limit, rate_period, throttle_limit, throttle_period, is_from_template)
 ORDER BY made.name
    ON CONFLICT (name) DO NOTHING
