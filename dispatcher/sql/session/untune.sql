-- untune: put back what tune_within has changed in a transaction of the caller.
SELECT set_config('plan_cache_mode', current_setting('dispatcher.plan_cache_mode'), true) AS plan_cache_mode,
       set_config('enable_seqscan', current_setting('dispatcher.enable_seqscan'), true) AS enable_seqscan,
       set_config('jit', current_setting('dispatcher.jit'), true) AS jit
