-- override_cleared: assignments that take an override off a key.
override_until = NULL, override_concurrency = NULL, override_per_worker = NULL, override_rate_limit = NULL,
override_rate_period = NULL, override_throttle_limit = NULL, override_throttle_period = NULL
