-- count_key_usage: the policies of these keys, and what is spent of them: slots, and starts that may still be in a
-- window.
-- `mine`: what the worker holds of those with a limit per worker.
-- Ages are compared, and no time is reckoned back: in a session's time zone a day may have 23 hours.
-- The caller holds their locks. Slots are counted where a limit asks for it. Relies on slot_key and the key of windows.
WITH spent AS MATERIALIZED (
    SELECT key.id, key.name, key.is_paused, key.blocked_until, key.chosen_at, key.last_start_at, key.last_cost,
           {{policy_columns(key)}}
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (%(keys)s::bigint[])
), limited AS MATERIALIZED (
    SELECT key.id
      FROM spent AS key
     WHERE COALESCE(key.concurrency, key.per_worker, key.rate_limit, key.throttle_limit,
                    key.override_concurrency, key.override_per_worker, key.override_rate_limit,
                    key.override_throttle_limit) IS NOT NULL
        OR key.blocked_until IS NOT NULL
)
SELECT key.id, key.name, key.is_paused, key.blocked_until, key.chosen_at, key.last_start_at, key.last_cost,
       {{policy_columns(key)}},
       COALESCE(slots.held, 0) AS held, own.mine, COALESCE(slots.unstarted, 0) AS unstarted,
       COALESCE(starts.at, '{}') AS start_at, COALESCE(starts.cost, '{}') AS start_cost
  FROM spent AS key
  -- FULL, though no slots come without a key: that is never a loop in a loop, whatever the statistics say.
  FULL JOIN ({{slots_of(ARRAY(SELECT id FROM limited))}}) AS slots ON slots.key_id = key.id
  LEFT JOIN LATERAL (
       SELECT COALESCE(sum(slot.cost), 0)::bigint AS mine
         FROM dispatcher_slot AS slot
        WHERE slot.key_id = key.id AND slot.worker_id = %(worker)s::uuid
          AND COALESCE(key.per_worker, key.override_per_worker) IS NOT NULL) AS own ON true
  LEFT JOIN LATERAL (
       SELECT array_agg(bucket.last_start_at ORDER BY bucket.last_start_at) AS at,
              array_agg(bucket.cost ORDER BY bucket.last_start_at) AS cost
         FROM dispatcher_window AS bucket
        WHERE bucket.key_id = key.id
          AND {{may_count(bucket, key, {{now}})}}) AS starts ON true
 ORDER BY key.id
