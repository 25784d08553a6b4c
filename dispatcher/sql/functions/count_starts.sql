-- count_starts: record what a trip has started of keys whose starts count: one row a key and time, with the running
-- total.
CREATE FUNCTION @count_starts(p_keys @key_room[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO dispatcher_start (key_id, at, total, cost, last_cost, delayed, longest, allowed_at)
  SELECT key.id, key.last_at, COALESCE(key.total, 0) + key.used, key.used, key.last_cost,
         (key.observed).delayed, (key.observed).longest, (key.observed).allowed_at
    FROM unnest(p_keys) AS key
   WHERE key.used > 0 AND key.is_counted;
END $$;
