-- trim_windows: delete the parts of windows that no longer count and that no start has taken over for more than a lap.
DELETE FROM dispatcher_window AS bucket
 USING dispatcher_ratelimitkey AS key
 WHERE key.id = bucket.key_id
   AND bucket.last_start_at < COALESCE(%(now)s::timestamptz, clock_timestamp())
                              - 4 * GREATEST(key.rate_period, key.override_rate_period, %(margin)s::interval)
