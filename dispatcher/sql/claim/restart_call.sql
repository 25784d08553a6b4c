-- restart_call: give the claim that won another start, since it overslept the first one or lost the answer.
-- No row back means the attempt is no longer this claim's. Nothing is changed where `is_closed` or `is_early`, as in
-- claim_call.
-- If no other start was given since (the first may come late by `missed`), its own is moved; else it stays unused,
-- those after it keep theirs, and so the spacing holds. `slack` is how late the new start may come: the next start is
-- that much further off, and a window remembers it that much longer. A start that a window has forgotten by now has
-- left its room to others: then the key counts as closed, and the call must be admitted again.
-- Locks the call, then the keys that have a throttle in order of id, then the windows in order of key.
WITH mine AS MATERIALIZED (
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.claim = %(claim)s::uuid
       AND call.state = 'active'
       FOR NO KEY UPDATE
), {{claim_spends}}, {{throttles_locked}}, {{throttles_in_force}}, allowed AS MATERIALIZED (
    SELECT CASE WHEN throttle.last_start_at = spent.started_at + %(missed)s::interval THEN spent.started_at
                ELSE throttle.next_start_at END AS at
      FROM throttle
      JOIN spent USING (key_id)
), clock AS MATERIALIZED (
    SELECT now, start_at, start_at + %(slack)s::interval AS latest_at, is_paced
      FROM ({{claim_start(allowed.at, allowed)}}) AS start
), verdict AS MATERIALIZED (
    SELECT EXISTS (SELECT
                     FROM spent
                     LEFT JOIN paced USING (key_id)
                    WHERE {{is_key_closed}} OR clock.start_at - spent.started_at >= spent.rate_period) AS is_closed,
           false AS is_expired, start_at - now > %(ahead)s::interval AS is_early, false AS is_revoked
      FROM clock
), claimed AS (
    UPDATE dispatcher_callqueue AS call
       SET started_at = clock.start_at, returns = 0, published_at = COALESCE(call.published_at, clock.now)
      FROM mine, clock, verdict
     WHERE call.id = mine.id AND call.ticket = %(ticket)s::uuid AND call.state = 'active'
       AND NOT (is_closed OR is_early)
    RETURNING call.id, call.attempt, call.retry
), {{start_recorded}}
SELECT {{claim_answer}}
  FROM mine
 CROSS JOIN clock
 CROSS JOIN verdict
  LEFT JOIN claimed ON true
