-- spend_window: count one start of a locked key, if its rate in force allows it; returns what is left either way.
-- `is_closed`: it is paused or blocked (until `blocked_until`), or has a concurrency of 0. Without a rate in force
-- there is no `rate_limit`. Relies on start_key.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), use AS MATERIALIZED (
    SELECT key, key.id AS key_id, key.rate_limit, key.rate_period, COALESCE(key.total, 0) AS total,
           NULLIF(key.closed_until, 'infinity') AS blocked_until,
           key.closed_until IS NOT NULL OR COALESCE(key.concurrency = 0, false) AS is_closed
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS named
     CROSS JOIN LATERAL {{@room}}(ARRAY[named.id], NULL, clock.now, '0', '0') AS key
     WHERE named.name = %(name)s::text
), spent AS MATERIALIZED (
    SELECT COALESCE(use.total - first.total + first.cost, 0) AS cost, first.at AS oldest
      FROM clock
     CROSS JOIN use
      LEFT JOIN LATERAL (
           SELECT start.at, start.total, start.cost
             FROM dispatcher_start AS start
            WHERE start.key_id = use.key_id AND start.at > clock.now - use.rate_period
            ORDER BY start.key_id, start.at, start.total
            LIMIT 1) AS first ON true
), verdict AS MATERIALIZED (
    SELECT NOT use.is_closed AND (use.rate_limit IS NULL OR spent.cost < use.rate_limit) AS is_allowed
      FROM use
     CROSS JOIN spent
), counted AS MATERIALIZED (
    SELECT {{@count_starts}}(ARRAY[jsonb_populate_record(use.key, counting.counted)])::text AS done
      FROM clock
     CROSS JOIN use
     CROSS JOIN verdict
     CROSS JOIN LATERAL (
           SELECT jsonb_build_object('used', 1, 'last_cost', 1, 'last_at', clock.now) AS counted) AS counting
     WHERE verdict.is_allowed
)
SELECT use.rate_limit, use.is_closed, use.blocked_until, verdict.is_allowed, clock.now,
       GREATEST(use.rate_limit - spent.cost - 1, 0)::bigint AS remaining,
       COALESCE(spent.oldest, clock.now) + use.rate_period AS resets_at
  FROM use
 CROSS JOIN spent
 CROSS JOIN verdict
 CROSS JOIN clock
  LEFT JOIN counted ON true
