-- observe: what the limits of an observed key would have done with a call that starts now. They would have delayed it
-- if it is in flight beyond the concurrency, or if rate and throttle would have let it go later than a trip gives
-- starts ahead. Calls go in the order of their starts: the first for which the window has no room waits until the first
-- start leaves it, each behind it for period / limit more, and a throttle spaces them. What is dispatched and has not
-- started does not count; nor does a limit per worker, since another worker may have had room. For how long a full
-- concurrency would have held it is unknown: the ends would have come at other times. No delay is over a year.
CREATE FUNCTION @observe(p_key @key_room, p_cost int, p_now timestamptz, p_tuning @tuning) RETURNS @key_room
LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_seen @observed := p_key.observed;
  v_at timestamptz := GREATEST(p_now, v_seen.allowed_at,
    CASE WHEN v_seen.throttle_limit IS NOT NULL
         THEN v_seen.allowed_at + @spacing(p_key.last_cost, v_seen.throttle_limit, v_seen.throttle_period) END);
BEGIN
  p_key.spent := p_key.spent + p_cost;
  IF p_key.spent > v_seen.rate_limit THEN
    v_at := GREATEST(v_at, COALESCE(p_key.spent_from, p_now) + v_seen.rate_period + p_tuning.margin,
      CASE WHEN v_seen.allowed_at > p_now
           THEN v_seen.allowed_at + @spacing(p_key.last_cost, v_seen.rate_limit, v_seen.rate_period) END);
  END IF;
  v_seen.allowed_at := LEAST(v_at, p_now + interval '366 days');
  IF v_at > p_now + p_tuning.horizon THEN
    v_seen.longest := GREATEST(v_seen.longest, v_seen.allowed_at - p_now);
  END IF;
  IF v_at > p_now + p_tuning.horizon OR p_key.held - p_key.unstarted > v_seen.concurrency THEN
    v_seen.delayed := v_seen.delayed + 1;
  END IF;
  p_key.observed := v_seen;
  RETURN p_key;
END $$;
