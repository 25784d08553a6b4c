-- now: the time by the database's clock, or the one that a test gives (see sql.Clock).
COALESCE(%(now)s::timestamptz, clock_timestamp())
