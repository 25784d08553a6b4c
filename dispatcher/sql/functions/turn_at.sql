-- turn_at: a turn on the clock of a fair key (see shares) as the served_at of a lane that is parked there. A clock
-- begins in the year 2200, so a lane without a turn goes first.
CREATE FUNCTION @turn_at(p_turn bigint) RETURNS timestamptz LANGUAGE sql STABLE AS $$
SELECT 'epoch'::timestamptz + interval '1 microsecond' * p_turn::float8
$$;
