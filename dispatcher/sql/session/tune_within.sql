-- tune_within: as tune, in a transaction of the caller: what is in force there is put back by `untune`, in the same
-- trip. After an error it is put back by the rollback.
SELECT set_config('dispatcher.plan_cache_mode', current_setting('plan_cache_mode'), true) AS plan_cache_mode_before,
       set_config('dispatcher.enable_seqscan', current_setting('enable_seqscan'), true) AS enable_seqscan_before,
       set_config('dispatcher.jit', current_setting('jit'), true) AS jit_before,
       set_config('plan_cache_mode', 'force_generic_plan', true) AS plan_cache_mode,
       set_config('enable_seqscan', 'off', true) AS enable_seqscan,
       set_config('jit', 'off', true) AS jit
