-- may_count(bucket, key, moment): whether the starts of a part of a window may still count under the key's limits or
-- its override's. Ages are compared, and no time is reckoned back: in a session's time zone a day may have 23 hours.
{{moment}} - {{bucket}}.last_start_at
< GREATEST({{key}}.rate_period, {{key}}.override_rate_period) + %(margin)s::interval
