-- is_key_closed: whether a row of the CTE `spent`, joined with `paced`, allows no start: its key was paused or
-- blocked since the admission.
spent.is_paused OR paced.is_paused OR spent.concurrency = 0
OR GREATEST(spent.blocked_until, paced.blocked_until) > clock.now
