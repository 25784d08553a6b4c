-- find_unique: the latest call with this unique key, in one of these states and sent within the period, if there is one.
-- The caller holds the key's lock (lock_unique). Relies on the index call_unique.
SELECT call.id, call.state
  FROM dispatcher_callqueue AS call
 WHERE call.unique_key = %(unique_key)s::text AND call.state = ANY (%(states)s::text[])
   AND (%(period)s::interval IS NULL OR call.created_at > clock_timestamp() - %(period)s::interval)
 ORDER BY call.position DESC
 LIMIT 1
