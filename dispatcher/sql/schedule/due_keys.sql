-- due_keys: the keys that time has opened for lanes parked on them. Relies on the index key_opens.
-- Ordered by time alone, as the index is: with the id as well, a batch would sort all that open at the same instant.
SELECT id
  FROM dispatcher_ratelimitkey
 WHERE opens_at <= (SELECT {{now}})
 ORDER BY opens_at
 LIMIT %(most)s::int
