-- spacing: how long after a start of this cost the next one may come; rounded up to a microsecond.
CREATE FUNCTION @spacing(p_cost bigint, p_limit int, p_period interval) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
SELECT interval '1 microsecond' * LEAST(ceil(extract(epoch FROM p_period) * 1e6 * p_cost / p_limit), 1e15)::float8
$$;
