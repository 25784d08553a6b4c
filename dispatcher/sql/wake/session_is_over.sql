-- session_is_over: whether no session of this process is left (see lock_session).
SELECT {{session_is_over(%(process)s::uuid)}}
