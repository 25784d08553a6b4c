-- spend_window: spend one of a key that is locked, if its window has room; what is left comes back either way.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), spent AS MATERIALIZED (
    SELECT key.id, key.rate_limit, key.rate_period, COALESCE(sum(bucket.cost), 0)::bigint AS cost, min(bucket.last_start_at) AS oldest
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
      LEFT JOIN dispatcher_window AS bucket ON bucket.key_id = key.id AND bucket.last_start_at > clock.now - key.rate_period
     WHERE key.name = %(name)s::text AND key.rate_limit IS NOT NULL
     GROUP BY key.id
), counted AS (
    INSERT INTO dispatcher_window AS bucket (key_id, bucket_at, cost, last_start_at)
    SELECT spent.id, date_bin(spent.rate_period / %(buckets)s::int, clock.now, 'epoch'), 1, clock.now
      FROM spent
     CROSS JOIN clock
     WHERE spent.cost < spent.rate_limit
        ON CONFLICT (key_id, bucket_at) DO UPDATE
       SET cost = bucket.cost + 1, last_start_at = GREATEST(bucket.last_start_at, excluded.last_start_at)
)
SELECT spent.rate_limit, spent.cost < spent.rate_limit AS is_allowed,
       GREATEST(spent.rate_limit - spent.cost - 1, 0)::bigint AS remaining,
       COALESCE(spent.oldest, clock.now) + spent.rate_period AS resets_at, clock.now
  FROM spent
 CROSS JOIN clock
