-- restore_claim: record the claim of a call whose attempt has ended although its row is still `dispatched`: a crash of
-- the database lost the commit of the claim. The start is counted now, by the limits in force, as claim_call counts it.
-- No row back means the ticket was replaced, or the claim was not lost. `claim`: its id, if the caller knows it.
-- Locks the call, then the keys that have a throttle in order of id, then the windows in order of key.
WITH claimed AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'active', claim = %(claim)s::uuid, attempt = call.attempt + 1, started_at = call.dispatched_at
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.state = 'dispatched'
    RETURNING call.id
), spent AS MATERIALIZED (
    SELECT slot.key_id, slot.cost,
           {{longest_period(key)}} AS longest,
           {{window_period(key.override_until > {{now}}, key)}} AS window_period,
           COALESCE(key.throttle_limit, key.override_throttle_limit) IS NOT NULL AS has_throttle
      FROM claimed
      JOIN dispatcher_slot AS slot ON slot.call_id = claimed.id
      JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
), {{throttles_locked}}, clock AS MATERIALIZED (
    -- Read after the locks.
    SELECT {{now}} AS now
      FROM (SELECT count(*) FROM paced) AS locked
), {{starts_counted(now)}}, spaced AS (
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
            OR EXTRACT(EPOCH FROM clock.now - paced.last_start_at)
               + COALESCE(spacing.seconds, 0) * (spent.cost - paced.last_cost) > 0)
)
SELECT id
  FROM claimed
