-- log_plans: for this transaction, send the plan and the times of each statement to the client, as notices.
SELECT set_config('auto_explain.log_min_duration', '0', true) AS log_min_duration,
       set_config('auto_explain.log_analyze', 'on', true) AS log_analyze,
       set_config('auto_explain.log_buffers', 'on', true) AS log_buffers,
       set_config('auto_explain.log_nested_statements', 'on', true) AS log_nested_statements,
       set_config('auto_explain.log_level', 'notice', true) AS log_level
