-- counts: whether the starts of a key with these limits are recorded, whatever limits are in force now.
CREATE FUNCTION @counts(p_rate int, p_override_rate int, p_throttle int, p_override_throttle int) RETURNS bool
LANGUAGE sql IMMUTABLE AS $$
SELECT COALESCE(p_rate, p_override_rate, p_throttle, p_override_throttle) IS NOT NULL
$$;
