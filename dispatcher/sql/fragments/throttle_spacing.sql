-- throttle_spacing(cost, limit, period): how long after a start of this cost the next one may come; rounded up to a
-- microsecond.
interval '1 microsecond' * LEAST(ceil(EXTRACT(EPOCH FROM {{period}}) * 1e6 * {{cost}} / {{limit}}), 1e15)::float8
