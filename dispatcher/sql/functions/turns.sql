-- turn: how long a start of this cost lasts on the clock of a fair key, in microseconds of it. turn_at: a turn as the
-- served_at of a lane. Clocks begin at `first` (see shares): a lane that is parked there without a turn goes first.
CREATE FUNCTION @turn(p_cost bigint, p_weight int) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
SELECT 100000 * p_cost / p_weight
$$;
CREATE FUNCTION @turn_at(p_turn bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
SELECT 'epoch'::timestamptz + interval '1 microsecond' * p_turn::float8
$$;
