-- session_is_over: whether no session of this process is left (see lock_session).
SELECT pg_try_advisory_xact_lock_shared(hashtextextended(%(process)s::uuid::text, 0))
