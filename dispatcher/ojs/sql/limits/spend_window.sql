-- spend_window: count one start of a locked key, if the limits in force allow it; returns what is left either way.
-- `is_closed`: it is paused or blocked (until `blocked_until`), or has a concurrency of 0. Without a rate in force
-- there is no
-- `rate_limit`. Counted as claim_call does: by the rate in force, or else by the key's own, which holds again later.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), force AS MATERIALIZED (
    SELECT key.id AS key_id, {{limit_in_force(holds, key, rate_limit)}} AS rate_limit,
           {{limit_in_force(holds, key, rate_period)}} AS rate_period,
           {{window_period(holds, key)}} AS window_period,
           {{longest_period(key)}} AS longest,
           CASE WHEN key.blocked_until > clock.now THEN key.blocked_until END AS blocked_until,
           key.is_paused OR COALESCE(key.blocked_until > clock.now, false)
           OR COALESCE({{limit_in_force(holds, key, concurrency)}} = 0, false) AS is_closed
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
     CROSS JOIN LATERAL (SELECT key.override_until > clock.now AS holds) AS override
     WHERE key.name = %(name)s::text
), spent AS MATERIALIZED (
    SELECT COALESCE(sum(bucket.cost), 0)::bigint AS cost, min(bucket.last_start_at) AS oldest
      FROM clock
     CROSS JOIN force
      JOIN dispatcher_window AS bucket ON bucket.key_id = force.key_id
     WHERE clock.now - bucket.last_start_at < force.rate_period
), verdict AS MATERIALIZED (
    SELECT NOT force.is_closed AND (force.rate_limit IS NULL OR spent.cost < force.rate_limit) AS is_allowed
      FROM force
     CROSS JOIN spent
), counted AS (
    INSERT INTO dispatcher_window AS bucket (key_id, place, cost, last_start_at)
    SELECT force.key_id, {{window_place(now)}}, 1, now
      FROM force
     CROSS JOIN clock
     CROSS JOIN verdict
     WHERE verdict.is_allowed AND force.window_period IS NOT NULL
        {{window_upsert(force)}}
)
SELECT force.rate_limit, force.is_closed, force.blocked_until, verdict.is_allowed, clock.now,
       GREATEST(force.rate_limit - spent.cost - 1, 0)::bigint AS remaining,
       COALESCE(spent.oldest, clock.now) + EXTRACT(EPOCH FROM force.rate_period) * interval '1 second' AS resets_at
  FROM force
 CROSS JOIN spent
 CROSS JOIN verdict
 CROSS JOIN clock
