-- next_due: how long until something falls due: a key opens, an override ends, a call's time comes or it expires.
-- Relies on the indexes key_opens, key_override_ends, call_due and call_expires.
SELECT LEAST((SELECT min(opens_at) FROM dispatcher_ratelimitkey WHERE opens_at IS NOT NULL),
             (SELECT min(override_until) FROM dispatcher_ratelimitkey WHERE override_until IS NOT NULL),
             (SELECT min(scheduled_at) FROM dispatcher_callqueue WHERE state IN ('scheduled', 'retryable')),
             (SELECT min(expires_at) FROM dispatcher_callqueue
               WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'pending', 'available', 'retryable')))
       - COALESCE(%(now)s::timestamptz, clock_timestamp()) AS wait
