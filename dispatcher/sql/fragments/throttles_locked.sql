-- throttles_locked: the CTE `paced`: the throttles of the keys that `spent` lists, locked in order of id.
paced AS MATERIALIZED (
    SELECT key.id AS key_id, key.last_start_at, key.last_cost, key.is_paused, key.blocked_until, key.override_until,
           key.throttle_limit, key.throttle_period, key.override_throttle_limit, key.override_throttle_period
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id IN (SELECT key_id FROM spent WHERE has_throttle)
     ORDER BY key.id
       FOR NO KEY UPDATE
)
