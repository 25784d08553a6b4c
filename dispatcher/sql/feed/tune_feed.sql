-- tune_feed: for this session, plan the statements of a feed once and by their indexes, and do not compile them (see
-- tune). Its connection is its own; behind a transaction pooler each transaction is tuned.
SELECT set_config('plan_cache_mode', 'force_generic_plan', %(is_local)s::bool) AS plan_cache_mode,
       set_config('enable_seqscan', 'off', %(is_local)s::bool) AS enable_seqscan,
       set_config('enable_bitmapscan', 'off', %(is_local)s::bool) AS enable_bitmapscan,
       set_config('jit', 'off', %(is_local)s::bool) AS jit
