-- restore_claim: record the claim of a call whose attempt has ended although its row is still `dispatched`: a crash of the
-- database lost the commit of the claim. The start is counted now, by the limits in force, as claim_call counts it.
-- No row back means the ticket was replaced, or the claim was not lost. `claim`: its number, if the caller knows it.
-- Locks the call, then the keys that have a throttle in order of id, then the windows in order of key.
WITH claimed AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'active', claim = %(claim)s::uuid, attempt = call.attempt + 1, started_at = call.dispatched_at
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.state = 'dispatched'
    RETURNING call.id
), spent AS MATERIALIZED (
    SELECT slot.key_id, slot.cost,
           GREATEST(key.rate_period, key.override_rate_period, %(margin)s::interval) AS longest,
           COALESCE(CASE WHEN key.override_until > COALESCE(%(now)s::timestamptz, clock_timestamp())
                         THEN key.override_rate_period END, key.rate_period) AS window_period,
           COALESCE(key.throttle_limit, key.override_throttle_limit) IS NOT NULL AS has_throttle
      FROM claimed
      JOIN dispatcher_slot AS slot ON slot.call_id = claimed.id
      JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
), paced AS MATERIALIZED (
    SELECT key.id AS key_id, key.last_start_at, key.last_cost, key.override_until,
           key.throttle_limit, key.throttle_period, key.override_throttle_limit, key.override_throttle_period
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id IN (SELECT key_id FROM spent WHERE has_throttle)
     ORDER BY key.id
       FOR NO KEY UPDATE
), clock AS MATERIALIZED (
    -- Read after the locks.
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
      FROM (SELECT count(*) FROM paced) AS locked
), counted AS (
    INSERT INTO dispatcher_window AS bucket (key_id, place, cost, last_start_at)
    SELECT key_id,
           trunc(mod(EXTRACT(EPOCH FROM now), EXTRACT(EPOCH FROM 2.5 * longest))
                 / EXTRACT(EPOCH FROM window_period / %(buckets)s::int)),
           cost, now
      FROM clock, spent
     WHERE window_period IS NOT NULL
     ORDER BY key_id
        ON CONFLICT (key_id, place) DO UPDATE
       SET last_start_at = GREATEST(bucket.last_start_at, excluded.last_start_at),
           cost = excluded.cost + CASE WHEN (SELECT now - bucket.last_start_at < 2 * longest
                                               FROM clock, spent WHERE key_id = bucket.key_id) THEN bucket.cost ELSE 0 END
), spaced AS (
    -- Only if the next start then comes later than the last one demands already.
    UPDATE dispatcher_ratelimitkey AS key
       SET last_start_at = clock.now, last_cost = spent.cost
      FROM clock, paced
      JOIN spent USING (key_id)
     CROSS JOIN LATERAL (
           SELECT CASE WHEN paced.override_until > clock.now
                       THEN EXTRACT(EPOCH FROM paced.override_throttle_period) / paced.override_throttle_limit
                       ELSE EXTRACT(EPOCH FROM paced.throttle_period) / paced.throttle_limit END AS seconds) AS spacing
     WHERE key.id = paced.key_id
       AND (paced.last_start_at IS NULL
            OR EXTRACT(EPOCH FROM clock.now - paced.last_start_at) + COALESCE(spacing.seconds, 0) * (spent.cost - paced.last_cost) > 0)
)
SELECT id
  FROM claimed
