-- turn: how long a start of this cost lasts on the clock of a fair key (see shares), in microseconds of it.
CREATE FUNCTION @turn(p_cost bigint, p_weight int) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
SELECT 100000 * p_cost / p_weight
$$;
