-- spend_window: spend one of a key that is locked, if its window has room; what is left comes back either way.
-- Counted as claim_call does.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), spent AS MATERIALIZED (
    SELECT key.id, key.rate_limit, key.rate_period, GREATEST(key.rate_period, key.override_rate_period, %(margin)s::interval) AS longest,
           COALESCE(sum(bucket.cost), 0)::bigint AS cost, min(bucket.last_start_at) AS oldest
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
      LEFT JOIN dispatcher_window AS bucket ON bucket.key_id = key.id AND bucket.last_start_at > clock.now - key.rate_period
     WHERE key.name = %(name)s::text AND key.rate_limit IS NOT NULL
     GROUP BY key.id
), counted AS (
    INSERT INTO dispatcher_window AS bucket (key_id, place, cost, last_start_at)
    SELECT spent.id,
           trunc(mod(EXTRACT(EPOCH FROM now), EXTRACT(EPOCH FROM 2.5 * longest))
                 / EXTRACT(EPOCH FROM rate_period / %(buckets)s::int)),
           1, now
      FROM spent
     CROSS JOIN clock
     WHERE spent.cost < spent.rate_limit
        ON CONFLICT (key_id, place) DO UPDATE
       SET last_start_at = GREATEST(bucket.last_start_at, excluded.last_start_at),
           cost = excluded.cost + CASE WHEN excluded.last_start_at - bucket.last_start_at < (
                      SELECT 2 * longest FROM spent) THEN bucket.cost ELSE 0 END
)
SELECT spent.rate_limit, spent.cost < spent.rate_limit AS is_allowed,
       GREATEST(spent.rate_limit - spent.cost - 1, 0)::bigint AS remaining,
       COALESCE(spent.oldest, clock.now) + spent.rate_period AS resets_at, clock.now
  FROM spent
 CROSS JOIN clock
