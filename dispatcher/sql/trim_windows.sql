-- trim_windows: delete the parts of windows that no longer count and that no start has taken over for more than a lap.
-- Those that somebody takes over right now are skipped: nobody waits for this.
WITH old AS MATERIALIZED (
    SELECT bucket.key_id, bucket.place
      FROM dispatcher_window AS bucket
      JOIN dispatcher_ratelimitkey AS key ON key.id = bucket.key_id
     WHERE bucket.last_start_at < COALESCE(%(now)s::timestamptz, clock_timestamp())
                                  - 4 * GREATEST(key.rate_period, key.override_rate_period, %(margin)s::interval)
     ORDER BY bucket.key_id, bucket.place
       FOR UPDATE OF bucket SKIP LOCKED
)
DELETE FROM dispatcher_window AS bucket
 USING old
 WHERE bucket.key_id = old.key_id AND bucket.place = old.place
