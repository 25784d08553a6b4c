-- longest_period(key): the longest that a start under a key may count.
GREATEST({{key}}.rate_period, {{key}}.override_rate_period, %(margin)s::interval)
