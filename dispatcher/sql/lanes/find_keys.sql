-- find_keys: the stored limits of the keys with these names. Relies on the unique index of key names.
SELECT id, name, concurrency, per_worker, rate_limit, rate_period, throttle_limit, throttle_period, fair_by, weight,
       is_observed
  FROM dispatcher_ratelimitkey
 WHERE name = ANY (%(names)s::text[])
 ORDER BY id
