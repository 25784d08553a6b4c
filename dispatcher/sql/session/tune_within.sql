-- tune_within: as tune, in a transaction of the caller; `is_over`: put back what was in force there, in the same trip.
-- After an error the rollback does. Read from left to right: what was in force is kept before it is changed.
SELECT CASE WHEN NOT %(is_over)s::bool
            THEN set_config('dispatcher.' || changed.name, current_setting(changed.name), true) END AS before,
       set_config(changed.name, CASE WHEN NOT %(is_over)s::bool THEN changed.value
                                     ELSE current_setting('dispatcher.' || changed.name) END, true) AS now
  FROM (VALUES ('plan_cache_mode', 'force_generic_plan'), ('enable_seqscan', 'off'), ('jit', 'off'))
       AS changed (name, value)
