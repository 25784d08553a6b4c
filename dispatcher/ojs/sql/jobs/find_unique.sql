-- find_unique: the latest call with this unique key, in one of these states and sent within the period, if there is
-- one.
-- State by state: of calls that ended long ago any number may have the same key. The caller holds the key's lock
-- (lock_unique). Relies on the index call_unique.
WITH since AS MATERIALIZED (
    SELECT COALESCE(clock_timestamp() - %(period)s::interval, '-infinity') AS at
)
SELECT latest.id, latest.queue, latest.state
  FROM unnest(%(states)s::text[]) AS wanted (state)
 CROSS JOIN LATERAL (
       SELECT call.id, call.queue, call.state, call.created_at
         FROM dispatcher_callqueue AS call
        WHERE call.unique_key = %(unique_key)s::text AND call.state = wanted.state
          AND call.created_at > (SELECT since.at FROM since)
        ORDER BY call.created_at DESC
        LIMIT 1) AS latest
 ORDER BY latest.created_at DESC, latest.id DESC
 LIMIT 1
