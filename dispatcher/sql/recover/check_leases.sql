-- check_leases: note that the leases are looked at now; return by when a lease must have been over to be judged.
-- NULL: none may be judged. If no check ran for longer than `gap`, heartbeats may have failed, too: workers then have
-- the time `wait` for it. Where every look comes after such a gap, a lease is judged that was over at the look before;
-- not if the server was started since then.
-- The updates change no row. They take the locks that a heartbeat takes, before the clock is read: a look waits for
-- what stops heartbeats, such as a table that is rewritten, and finds the gap after it.
WITH calls AS (
    UPDATE dispatcher_callqueue SET published_at = NULL WHERE false
), slots AS (
    UPDATE dispatcher_slot SET worker_id = NULL WHERE false
), workers AS (
    UPDATE dispatcher_worker SET lost_at = NULL WHERE false
), {{clock}}, previous AS MATERIALIZED (
    SELECT checked_at
      FROM dispatcher_leasecheck
     WHERE checked_at > pg_postmaster_start_time()
), noted AS (
    INSERT INTO dispatcher_leasecheck AS lease_check (id, checked_at, since)
    SELECT 1, clock.now, 'epoch'
      FROM clock
        ON CONFLICT (id) DO UPDATE
       SET checked_at = GREATEST(lease_check.checked_at, excluded.checked_at),
           since = CASE WHEN excluded.checked_at - lease_check.checked_at > %(gap)s::interval THEN excluded.checked_at
                        ELSE lease_check.since END
    RETURNING lease_check.since <= lease_check.checked_at - %(wait)s::interval AS leases_reliable,
              lease_check.since = lease_check.checked_at AS is_after_gap
)
SELECT CASE WHEN noted.leases_reliable THEN clock.now WHEN noted.is_after_gap THEN previous.checked_at END AS until
  FROM noted
 CROSS JOIN clock
  LEFT JOIN previous ON true
