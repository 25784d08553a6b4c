-- counts: whether the starts of a key are recorded, whatever limits are in force now.
CREATE FUNCTION @counts(p_key dispatcher_ratelimitkey) RETURNS bool LANGUAGE sql IMMUTABLE AS $$
SELECT COALESCE(p_key.rate_limit, p_key.override_rate_limit, p_key.throttle_limit, p_key.override_throttle_limit)
       IS NOT NULL
$$;
