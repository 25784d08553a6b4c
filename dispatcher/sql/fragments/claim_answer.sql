-- claim_answer: the columns by which a claim learns its start: `is_counted` where a window counts it. The commit
-- waits for the disk with `is_durable`, as the server's setting says; else what a crash loses of it, the finish still
-- proves.
is_closed, is_expired, is_early, verdict.is_revoked, clock_timestamp() AS database_time, start_at, attempt, retry,
is_paced, (SELECT count(window_period) > 0 FROM spent) AS is_counted,
CASE WHEN NOT %(is_durable)s::bool THEN set_config('synchronous_commit', 'off', true) END AS commit
