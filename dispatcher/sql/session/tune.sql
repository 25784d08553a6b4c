-- tune: for this transaction, plan the prepared statements once and by their indexes, and do not compile them.
-- Planning them at each run would cost more than running them; and a plan that is kept must not be one that read a
-- table whole because it was small that day. Up to PostgreSQL 17 forbidding that makes plans look so dear that the
-- server would compile them, which takes longer than all else.
-- `in_order`: read rows in the order of an index where one has it: a bitmap would be sorted, which looks cheap where
-- the statistics say that few rows would do. Not for statements that find rows by an array and then order them: up to
-- PostgreSQL 16, these would be looked for among all.
-- `lock_wait`: how many milliseconds a statement waits for a lock.
-- Where the client does not go on, since its process is frozen or its machine is gone, the server ends the transaction,
-- so that what it has locked is free. Who goes on after that finds the connection broken, and begins again.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true) AS plan_cache_mode,
       set_config('enable_seqscan', 'off', true) AS enable_seqscan,
       set_config('jit', 'off', true) AS jit,
       set_config('idle_in_transaction_session_timeout', '5s', true) AS idle_in_transaction_session_timeout,
       CASE WHEN %(in_order)s::bool THEN set_config('enable_bitmapscan', 'off', true) END AS enable_bitmapscan,
       CASE WHEN %(in_order)s::bool THEN set_config('enable_sort', 'off', true) END AS enable_sort,
       CASE WHEN %(lock_wait)s::int IS NOT NULL
            THEN set_config('lock_timeout', %(lock_wait)s::int::text, true) END AS lock_timeout
