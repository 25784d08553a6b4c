-- room: what each of these keys allows now, by the limits in force. The only text of "has it room": the claim, reports
-- and the audit read it, too. Who decides by it has locked the keys in an earlier statement.
-- A window is the running total of the newest start less that before the first start which still counts: two probes of
-- the index start_key, whatever the rate. A start counts for `p_margin` longer than the period: the way to the
-- provider. `p_worker`: whose own room is counted. `p_ramp`: how long after a block what is in flight grows, step by
-- step: 1 at first, twice as much with every eighth of it. Relies on slot_key and start_key.
-- A key that is observed has room whatever its limits say: what these would do is counted at its starts (see observe).
CREATE TYPE @observed AS (    -- of such a key: its limits, and what they would have done since they last changed
    concurrency int,
    rate_limit int,
    rate_period interval,
    throttle_limit int,
    throttle_period interval,
    delayed bigint,           -- how many starts they would have delayed
    longest interval,         -- by how much at the most, as far as rate and throttle say
    allowed_at timestamptz    -- when these would have let its last start go
);
CREATE TYPE @key_room AS (
    id bigint,
    room bigint,              -- the cost that may start for any worker
    own bigint,               -- the cost that this worker may still hold
    fits bigint,              -- the most that a call may ever cost
    next_at timestamptz,      -- when the throttle allows the next start
    throttle_limit int,
    throttle_period interval,
    rate_limit int,
    rate_period interval,
    unstarted bigint,         -- the cost that is dispatched and has not started
    held bigint,
    closed_until timestamptz, -- the end of a block; infinity: paused
    ramp_from timestamptz,    -- since when the ramp runs
    is_group bool,
    is_counted bool,          -- whether its starts are recorded; those of a member of a group are, too (see lock_keys)
    total bigint,             -- the running total of its starts
    last_at timestamptz,
    last_cost int,
    used bigint,              -- the cost that the trip starts
    name text,
    concurrency int,
    per_worker int,
    fair_by text,             -- its turns go to shares: calls that spend a key whose name begins so
    spent bigint,             -- the cost of the starts that count in its window
    spent_from timestamptz,   -- when the first of these was
    observed @observed        -- NULL: its limits are enforced
);
CREATE FUNCTION @room(p_keys bigint[], p_worker uuid, p_now timestamptz, p_margin interval, p_ramp interval)
RETURNS SETOF @key_room LANGUAGE sql STABLE AS $$
SELECT key.id,
       GREATEST(0, CASE WHEN key.is_paused OR key.blocked_until > p_now THEN 0
                        ELSE LEAST(force.concurrency - slots.held,
                                   force.rate_limit - slots.unstarted
                                   - counted.spent,
                                   (1 << ramp.step) - slots.held,
                                   2147483647) END),
       CASE WHEN force.per_worker IS NULL THEN 2147483647
            WHEN p_worker IS NULL THEN 0
            ELSE force.per_worker - slots.mine END,
       LEAST(NULLIF(force.concurrency, 0), force.per_worker, force.rate_limit, 2147483647,
             CASE WHEN force.throttle_limit IS NOT NULL     -- the next start comes within a year
                  THEN floor(366 * 86400.0 * force.throttle_limit / extract(epoch FROM force.throttle_period))
             END)::bigint,
       CASE WHEN force.throttle_limit IS NOT NULL
            THEN GREATEST(p_now, last.at
                                 + @spacing(last.last_cost, force.throttle_limit, force.throttle_period))
                 + @spacing(slots.unstarted, force.throttle_limit, force.throttle_period) END,
       force.throttle_limit, force.throttle_period, force.rate_limit, force.rate_period, slots.unstarted, slots.held,
       CASE WHEN key.is_paused THEN 'infinity' WHEN key.blocked_until > p_now THEN key.blocked_until END,
       CASE WHEN key.blocked_until + p_ramp > p_now THEN key.blocked_until END,
       key.is_group,
       key.is_observed
         OR @counts(key.rate_limit, key.override_rate_limit, key.throttle_limit, key.override_throttle_limit),
       last.total, last.at, last.last_cost, 0::bigint,
       key.name::text, force.concurrency, force.per_worker, key.fair_by::text, counted.spent, first.at,
       CASE WHEN key.is_observed
            THEN (given.concurrency, given.rate_limit, given.rate_period, given.throttle_limit, given.throttle_period,
                  CASE WHEN last.at > key.limited_at THEN COALESCE(last.delayed, 0) ELSE 0 END,
                  CASE WHEN last.at > key.limited_at THEN last.longest END,
                  CASE WHEN last.at > key.limited_at THEN last.allowed_at END)::@observed END
  FROM dispatcher_ratelimitkey AS key
 CROSS JOIN LATERAL (SELECT COALESCE(key.override_until > p_now, false) AS is_on) AS override
 CROSS JOIN LATERAL (
       SELECT CASE WHEN override.is_on THEN key.override_concurrency ELSE key.concurrency END AS concurrency,
              CASE WHEN override.is_on THEN key.override_per_worker ELSE key.per_worker END AS per_worker,
              CASE WHEN override.is_on THEN key.override_rate_limit ELSE key.rate_limit END AS rate_limit,
              CASE WHEN override.is_on THEN key.override_rate_period ELSE key.rate_period END AS rate_period,
              CASE WHEN override.is_on THEN key.override_throttle_limit ELSE key.throttle_limit END AS throttle_limit,
              CASE WHEN override.is_on THEN key.override_throttle_period ELSE key.throttle_period END
                  AS throttle_period
        OFFSET 0) AS given
 CROSS JOIN LATERAL (
       SELECT CASE WHEN NOT key.is_observed THEN given.concurrency END AS concurrency,
              CASE WHEN NOT key.is_observed THEN given.per_worker END AS per_worker,
              CASE WHEN NOT key.is_observed THEN given.rate_limit END AS rate_limit,
              CASE WHEN NOT key.is_observed THEN given.rate_period END AS rate_period,
              CASE WHEN NOT key.is_observed THEN given.throttle_limit END AS throttle_limit,
              CASE WHEN NOT key.is_observed THEN given.throttle_period END AS throttle_period) AS force
 CROSS JOIN LATERAL (
       SELECT CASE WHEN key.blocked_until <= p_now AND p_now < key.blocked_until + p_ramp
                   THEN floor(8 * extract(epoch FROM p_now - key.blocked_until) / extract(epoch FROM p_ramp))::int
              END AS step) AS ramp
 CROSS JOIN LATERAL (
       SELECT COALESCE(sum(slot.cost), 0) AS held,
              COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0) AS unstarted,
              COALESCE(sum(slot.cost) FILTER (WHERE slot.worker_id = p_worker), 0) AS mine
         FROM dispatcher_slot AS slot
        WHERE slot.key_id = key.id AND slot.id >= key.slots_from) AS slots
  LEFT JOIN LATERAL (
       SELECT start.total, start.at, start.last_cost, start.delayed, start.longest, start.allowed_at
         FROM dispatcher_start AS start
        WHERE start.key_id = key.id
        ORDER BY start.key_id DESC, start.at DESC, start.total DESC
        LIMIT 1) AS last ON true
  LEFT JOIN LATERAL (
       SELECT start.total, start.cost, start.at
         FROM dispatcher_start AS start
        WHERE start.key_id = key.id AND start.at > p_now - given.rate_period - p_margin
        ORDER BY start.key_id, start.at, start.total
        LIMIT 1) AS first ON true
 CROSS JOIN LATERAL (
       SELECT COALESCE(last.total - first.total + first.cost, 0) AS spent) AS counted
 WHERE key.id = ANY (p_keys)
$$;
