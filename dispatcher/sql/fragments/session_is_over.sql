-- session_is_over(process): whether no session of a process is left (see lock_session).
pg_try_advisory_xact_lock_shared(hashtextextended({{process}}::text, 0))
