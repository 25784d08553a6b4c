-- settle: write what becomes of calls that do not start: dropped at a limit, expired, cancelled since they were
-- revoked, put off (`later`), put aside since they cost more than a key ever allows (`oversized`), or put off since the
-- worker does not know their task (`unknown`): for a moment if another live worker of the queue does, else for twice as
-- long each time. Returns those that ended, and those of unknown tasks. The caller has locked the calls.
CREATE FUNCTION @settle(p_fates @fate[], p_tuning @tuning, p_now timestamptz)
RETURNS TABLE (id uuid, state text, task text, queue text, attempt int, fate text, key text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  UPDATE dispatcher_callqueue AS call
     SET state = CASE fate.fate WHEN 'oversized' THEN 'available' WHEN 'later' THEN 'scheduled'
                                WHEN 'unknown' THEN 'scheduled' WHEN 'cancelled' THEN 'cancelled' ELSE 'discarded' END,
         reason = CASE fate.fate WHEN 'dropped' THEN 'limit' WHEN 'expired' THEN 'expired' END,
         oversized_key_id = CASE WHEN fate.fate = 'oversized' THEN fate.key_id END,
         oversized_cost = CASE WHEN fate.fate = 'oversized' THEN fate.cost END,
         scheduled_at = CASE fate.fate WHEN 'later' THEN fate.at WHEN 'unknown' THEN p_now + fate.wait
                                       ELSE call.scheduled_at END,
         returns = CASE WHEN fate.fate = 'unknown' THEN LEAST(call.returns + 1, 32767) ELSE call.returns END,
         finished_at = CASE WHEN fate.fate IN ('dropped', 'expired', 'cancelled') THEN p_now END,
         error = CASE fate.fate
                 WHEN 'dropped'
                 THEN jsonb_build_object('type', 'LimitReached', 'message', 'dropped at the limit of ' || fate.key,
                                         'attempt', call.attempt, 'key', fate.key, 'occurred_at', p_now)
                 WHEN 'expired'
                 THEN jsonb_build_object('type', 'Expired', 'message', 'not started by ' || call.expires_at,
                                         'attempt', call.attempt, 'occurred_at', p_now)
                 ELSE call.error END
    FROM (SELECT fate.call, fate.fate, fate.at, fate.key_id, fate.cost, key.name AS key,
                 CASE WHEN fate.fate = 'unknown'
                      THEN CASE WHEN known.is_known
                                THEN LEAST(interval '0.5 seconds' * (seen.returns + 1), longest.first)
                                ELSE LEAST(longest.first * power(2, LEAST(seen.returns, 20)),
                                           12 * p_tuning.dispatch_lease) END END AS wait
            FROM unnest(p_fates) AS fate
            JOIN dispatcher_callqueue AS seen ON seen.id = fate.call
            LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = fate.key_id
           CROSS JOIN LATERAL (
                 SELECT fate.fate = 'unknown' AND EXISTS (
                          SELECT FROM dispatcher_worker AS worker
                           WHERE seen.queue = ANY (worker.queues) AND worker.serves_until > p_now
                             AND (worker.tasks IS NULL OR seen.task = ANY (worker.tasks))) AS is_known) AS known
           CROSS JOIN LATERAL (SELECT LEAST(interval '1 minute', p_tuning.dispatch_lease) AS first) AS longest) AS fate
   WHERE call.id = ANY (ARRAY(SELECT fate.call FROM unnest(p_fates) AS fate)) AND call.id = fate.call
  RETURNING call.id, call.state::text, call.task::text, call.queue::text, call.attempt, fate.fate, fate.key::text;
END $$;
