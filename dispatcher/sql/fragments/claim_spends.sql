-- claim_spends: the CTE `spent`: what the call of the CTE `mine` holds, and the limits in force. From here on the
-- statement waits for locks no longer than `lock_wait` (ms), and then fails: a transaction that keeps a key locked
-- holds no process.
spent AS MATERIALIZED (
    SELECT slot.key_id, slot.cost, slot.started_at, key.is_paused, key.blocked_until,
           CASE WHEN %(lock_wait)s::int IS NOT NULL
                THEN set_config('lock_timeout', %(lock_wait)s::int::text, true) END AS bound,
           {{longest_period(key)}} AS longest,
           {{limit_in_force(holds, key, concurrency)}} AS concurrency,
           {{limit_in_force(holds, key, rate_period)}} AS rate_period,
           {{window_period(holds, key)}} AS window_period,
           COALESCE(key.throttle_limit, key.override_throttle_limit) IS NOT NULL AS has_throttle
      FROM mine
      JOIN dispatcher_slot AS slot ON slot.call_id = mine.id
      JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
     CROSS JOIN LATERAL (SELECT key.override_until > {{now}} AS holds) AS override
)
