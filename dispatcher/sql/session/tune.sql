-- tune: for this transaction, plan the prepared statements once and by their indexes, and do not compile
-- them.
-- Planning them at each run would cost more than running them; and a plan that is kept must not be one that read a
-- table whole because it was small that day. Up to PostgreSQL 17 forbidding that makes plans look so dear that the
-- server would compile them, which takes longer than all else.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true) AS plan_cache_mode,
       set_config('enable_seqscan', 'off', true) AS enable_seqscan,
       set_config('jit', 'off', true) AS jit
