-- not_expired(row, moment): whether a call or a token has not expired.
({{row}}.expires_at IS NULL OR {{row}}.expires_at > {{moment}})
