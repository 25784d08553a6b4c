-- due_keys: the keys that time has opened for lanes parked on them. Relies on the index key_opens.
SELECT id
  FROM dispatcher_ratelimitkey
 WHERE opens_at <= (SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()))
 ORDER BY opens_at, id
 LIMIT %(most)s::int
