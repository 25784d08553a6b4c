-- window_period(holds, key): the period in whose window a start counts: that of the rate in force; where an override
-- has none, that of the key's own rate, which holds again after it.
COALESCE(CASE WHEN {{holds}} THEN {{key}}.override_rate_period END, {{key}}.rate_period)
