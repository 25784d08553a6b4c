-- limit_lock_wait: for this transaction, let a statement wait for a lock for so many milliseconds and no longer.
SELECT set_config('lock_timeout', %(most)s::int::text, true) AS lock_timeout
