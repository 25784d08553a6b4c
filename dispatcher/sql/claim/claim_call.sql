-- claim_call: win the right to run one attempt; this is the start, and it is recorded on the windows and throttles.
-- No row back means the ticket was used or replaced. `claim` identifies this claim: a worker that lost the answer
-- recognizes it by that, and asks for another start (restart_call).
-- Nothing is changed where `is_closed` (a key was paused or blocked since the admission), `is_expired` (the call did
-- not start in time), `is_revoked` (it was revoked while an earlier attempt ran) or `is_early` (its start is more than
-- `ahead` away: a throttle was tightened since the admission, or starts were missed).
-- Locks the call, then the keys that have a throttle in order of id, then the windows in order of key.
WITH mine AS MATERIALIZED (
    SELECT call.id, call.expires_at, call.is_revoked
      FROM dispatcher_callqueue AS call
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.state = 'dispatched'
       FOR NO KEY UPDATE
), {{claim_spends}}, {{throttles_locked}}, {{throttles_in_force}}, clock AS MATERIALIZED (
    SELECT now, start_at, start_at AS latest_at, is_paced
      FROM ({{claim_start(next_start_at, throttle)}}) AS start
), verdict AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM spent LEFT JOIN paced USING (key_id) WHERE {{is_key_closed}}) AS is_closed,
           EXISTS (SELECT FROM mine WHERE expires_at <= now) AS is_expired,
           start_at - now > %(ahead)s::interval AS is_early,
           EXISTS (SELECT FROM mine WHERE is_revoked) AS is_revoked
      FROM clock
), claimed AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'active', claim = %(claim)s::uuid, started_at = clock.start_at, attempt = call.attempt + 1,
           returns = 0, published_at = COALESCE(call.published_at, clock.now)
      FROM mine, clock, verdict
     WHERE call.id = mine.id AND call.ticket = %(ticket)s::uuid AND call.state = 'dispatched'
       AND NOT (is_closed OR is_expired OR is_early OR verdict.is_revoked)
    RETURNING call.id, call.attempt, call.retry
), {{start_recorded}}
SELECT {{claim_answer}}
  FROM mine
 CROSS JOIN clock
 CROSS JOIN verdict
  LEFT JOIN claimed ON true
