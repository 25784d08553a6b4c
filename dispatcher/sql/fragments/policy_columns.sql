-- policy_columns(key): the columns that hold the limits of a key, its shares, and its override.
{{key}}.concurrency, {{key}}.per_worker, {{key}}.rate_limit, {{key}}.rate_period, {{key}}.throttle_limit,
{{key}}.throttle_period, {{key}}.fair_by, {{key}}.weight, {{key}}.is_observed, {{key}}.override_until,
{{key}}.override_concurrency, {{key}}.override_per_worker, {{key}}.override_rate_limit, {{key}}.override_rate_period,
{{key}}.override_throttle_limit, {{key}}.override_throttle_period
