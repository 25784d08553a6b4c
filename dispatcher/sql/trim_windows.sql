-- trim_windows: delete the parts of windows that can no longer count.
DELETE FROM dispatcher_window AS bucket
 USING dispatcher_ratelimitkey AS key
 WHERE key.id = bucket.key_id
   AND bucket.last_start_at < COALESCE(%(now)s::timestamptz, clock_timestamp())
                              - 2 * GREATEST(key.rate_period, key.override_rate_period, interval '1 second')
