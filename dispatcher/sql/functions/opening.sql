-- opening: when time lets a call of this cost start that this key stops: the end of a block or a step of its ramp, the
-- time at which enough starts have left the window, or the throttle's next start less `p_horizon`. NULL: time does not
-- open it: it is paused, or full.
-- What the caller has taken in its trip counts, too: `held`, `unstarted`, and `used` at `last_at`.
CREATE FUNCTION @opening(p_key @key_room, p_cost bigint, p_horizon interval, p_margin interval, p_ramp interval,
    p_now timestamptz) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_at timestamptz := p_now;
  v_need bigint;                                     -- the running total that must have left the window
  v_gone bigint;                                     -- of the running total, what no longer counts
BEGIN
  IF p_key.closed_until = 'infinity' OR p_key.concurrency < p_key.held + p_cost THEN
    RETURN NULL;
  END IF;
  v_at := GREATEST(v_at, p_key.closed_until);
  IF p_key.ramp_from IS NOT NULL AND p_key.held + p_cost > 1 THEN
    -- The first step that allows what is in flight and the call; rounded up: the step has come at that time.
    v_at := GREATEST(v_at, p_key.ramp_from
      + interval '1 microsecond' * ceil(extract(epoch FROM p_ramp) * 1e6 / 8 * COALESCE(
          (SELECT min(step) FROM generate_series(0, 7) AS step WHERE (1 << step) >= p_key.held + p_cost), 8))::float8);
  END IF;
  IF p_key.rate_limit IS NOT NULL THEN
    v_need := COALESCE(p_key.total, 0) + p_key.used + p_key.unstarted + p_cost - p_key.rate_limit;
    SELECT start.total - start.cost INTO v_gone
      FROM dispatcher_start AS start
     WHERE start.key_id = p_key.id AND start.at > p_now - p_key.rate_period - p_margin
     ORDER BY start.key_id, start.at, start.total
     LIMIT 1;
    IF v_gone IS NULL THEN                           -- none counts: what the trip starts is in p_key.total, maybe
      v_gone := COALESCE((SELECT max(start.total) FROM dispatcher_start AS start WHERE start.key_id = p_key.id), 0);
    END IF;
    IF v_need > v_gone THEN
      v_at := GREATEST(v_at, p_key.rate_period + p_margin + COALESCE(
        (SELECT start.at
           FROM dispatcher_start AS start
          WHERE start.key_id = p_key.id AND start.at > p_now - p_key.rate_period - p_margin AND start.total >= v_need
          ORDER BY start.key_id, start.at, start.total
          LIMIT 1),
        CASE WHEN v_need <= COALESCE(p_key.total, 0) + p_key.used THEN p_key.last_at END,
        p_now));                                     -- what is dispatched must start and leave first
    END IF;
  END IF;
  v_at := GREATEST(v_at, p_key.next_at - p_horizon);
  RETURN NULLIF(v_at, p_now);
END $$;
