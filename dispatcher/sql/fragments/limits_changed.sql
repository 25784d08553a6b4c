-- limits_changed(key): assignments that follow every change of a key's limits. The time at which the former limits
-- would have opened the key no longer counts: the next pass works it out again.
limited_at = clock_timestamp(), admissions = {{key}}.admissions + 1,
opens_at = CASE WHEN {{key}}.opens_at IS NOT NULL THEN LEAST({{key}}.opens_at, clock_timestamp()) END
