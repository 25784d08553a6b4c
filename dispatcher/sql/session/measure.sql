-- measure: for this transaction, let the server time each function, or with `has_plans` send the plan and the times of
-- each statement inside to the client, as notices. A superuser may, and who was granted to set these.
SELECT set_config(setting.name, setting.value, true) AS value
  FROM (VALUES (false, 'track_functions', 'all'),
               (true, 'auto_explain.log_min_duration', '0'), (true, 'auto_explain.log_analyze', 'on'),
               (true, 'auto_explain.log_buffers', 'on'), (true, 'auto_explain.log_nested_statements', 'on'),
               (true, 'auto_explain.log_level', 'notice')) AS setting (has_plans, name, value)
 WHERE setting.has_plans = %(has_plans)s::bool
