-- watch_leases: note that the leases are looked at now; say whether they can be judged.
-- They can't for a while behind a gap: if nobody could look, then maybe no heartbeat could come through.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
INSERT INTO dispatcher_leasewatch AS watch (id, looked_at, since)
SELECT 1, clock.now, 'epoch'
  FROM clock
    ON CONFLICT (id) DO UPDATE
   SET looked_at = excluded.looked_at,
       since = CASE WHEN excluded.looked_at - watch.looked_at > %(gap)s::interval THEN excluded.looked_at ELSE watch.since END
RETURNING watch.since <= watch.looked_at - %(wait)s::interval AS is_sure
