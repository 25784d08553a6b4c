-- claim_call: win the right to run one attempt; this is the start, and it is stamped on the windows and throttles.
-- No row back means the ticket was used or replaced. `claim` identifies this claim: a worker that lost the answer
-- recognizes it by that. Nothing is changed where `is_closed` (a key was paused or blocked since the admission),
-- `is_expired` (the call did not start in time), `is_revoked` (it was revoked while an earlier attempt ran) or
-- `is_early` (its start lies more than `ahead` away: a throttle was tightened since the admission, or starts were
-- missed).
-- Under a throttle the start lies ahead, by `lead` at least: the worker waits for it. It follows the last start,
-- whatever that cost, at the spacing of the throttle in force now.
-- With `is_late`, the claim that won asks for another start, since it overslept the first or lost the answer. If no
-- other start was given since (the first may come late by `missed`), its own is moved; else it stays unused, those
-- after it keep theirs, and so the spacing holds. `slack` is how late the new start may come: the next start lies that
-- much further off, and a window remembers it that much longer. A start that a window has forgotten by now has left its
-- room to others: then the key counts as closed, and the call must be admitted again.
-- A start counts in the window of the rate in force; where an override has none, in that of the key's own rate, which
-- holds again after it.
-- A part of a window has its place in a lap of 2.5 times the longest that a start may count. What stands there from the
-- lap before is taken over, so that a busy window is updated in place; what may still count, as when a period has
-- changed, is added to. Ages are compared, and no time is reckoned back: in a session's time zone a day may have 23
-- hours.
-- Locks the call, then the keys that have a throttle in order of id, then the windows in order of key. With `lock_wait`
-- (ms) it waits for keys and windows no longer than that, and then fails: a transaction that keeps a key locked holds
-- no process.
-- With `is_durable` the commit waits for the disk as the server's setting says; else what a crash loses of it, the
-- finish still proves.
WITH mine AS MATERIALIZED (
    SELECT call.id, call.expires_at, call.is_revoked
      FROM dispatcher_callqueue AS call
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid
       AND CASE WHEN %(is_late)s::bool THEN call.state = 'active' AND call.claim = %(claim)s::uuid
                ELSE call.state = 'dispatched' END
       FOR NO KEY UPDATE
), spent AS MATERIALIZED (
    SELECT slot.key_id, slot.cost, slot.started_at, key.is_paused, key.blocked_until,
           CASE WHEN %(lock_wait)s::int IS NOT NULL THEN set_config('lock_timeout', %(lock_wait)s::int::text, true) END AS bound,
           {{longest_period(key)}} AS longest,
           {{limit_in_force(holds, key, concurrency)}} AS concurrency,
           {{limit_in_force(holds, key, rate_period)}} AS rate_period,
           {{window_period(holds, key)}} AS window_period,
           COALESCE(key.throttle_limit, key.override_throttle_limit) IS NOT NULL AS has_throttle
      FROM mine
      JOIN dispatcher_slot AS slot ON slot.call_id = mine.id
      JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
     CROSS JOIN LATERAL (
           SELECT key.override_until > {{now}} AS holds) AS override
), {{throttles_locked}}, moment AS MATERIALIZED (
    -- Read after the locks.
    SELECT {{now}} AS now
      FROM (SELECT count(*) FROM paced) AS locked
), throttle AS MATERIALIZED (
    SELECT CASE WHEN %(is_late)s::bool AND paced.last_start_at = spent.started_at + %(missed)s::interval THEN spent.started_at
                ELSE paced.last_start_at + {{throttle_spacing(paced.last_cost, force.starts, force.period)}}
            END AS next_start_at
      FROM moment
     CROSS JOIN paced
      JOIN spent USING (key_id)
     CROSS JOIN LATERAL (SELECT paced.override_until > moment.now AS holds) AS override
     CROSS JOIN LATERAL (
           SELECT {{limit_in_force(holds, paced, throttle_limit)}} AS starts,
                  {{limit_in_force(holds, paced, throttle_period)}} AS period) AS force
     WHERE force.starts IS NOT NULL
), clock AS MATERIALIZED (
    SELECT now, start_at, start_at + %(slack)s::interval AS latest_at, is_paced
      FROM moment
     CROSS JOIN (SELECT count(*) > 0 AS is_paced, max(next_start_at) AS next_start_at FROM throttle) AS pace
     CROSS JOIN LATERAL (
           SELECT GREATEST(now, next_start_at, CASE WHEN is_paced THEN now + %(lead)s::interval END) AS start_at) AS next
), verdict AS MATERIALIZED (
    SELECT EXISTS (SELECT
                     FROM spent
                     LEFT JOIN paced USING (key_id)
                    WHERE spent.is_paused OR paced.is_paused OR spent.concurrency = 0
                       OR GREATEST(spent.blocked_until, paced.blocked_until) > clock.now
                       OR (%(is_late)s::bool AND clock.start_at - spent.started_at >= spent.rate_period)) AS is_closed,
           NOT %(is_late)s::bool AND EXISTS (SELECT FROM mine WHERE expires_at <= now) AS is_expired,
           start_at - now > %(ahead)s::interval AS is_early,
           NOT %(is_late)s::bool AND EXISTS (SELECT FROM mine WHERE is_revoked) AS is_revoked
      FROM clock
), claimed AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'active', claim = %(claim)s::uuid, started_at = clock.start_at,
           attempt = call.attempt + (NOT %(is_late)s::bool)::int, returns = 0,
           published_at = COALESCE(call.published_at, clock.now)
      FROM mine, clock, verdict
     WHERE call.id = mine.id AND call.ticket = %(ticket)s::uuid AND call.state IN ('dispatched', 'active')
       AND NOT (is_closed OR is_expired OR is_early OR verdict.is_revoked)
    RETURNING call.id, call.attempt, call.retry
), started AS (
    UPDATE dispatcher_slot AS slot
       SET started_at = clock.start_at, lease_until = clock.start_at + %(lease)s::interval, worker_id = %(worker)s::uuid
      FROM claimed, clock
     WHERE slot.call_id = claimed.id
), {{starts_counted(latest_at)}}, spaced AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET last_start_at = clock.latest_at, last_cost = spent.cost
      FROM claimed, clock, paced
      JOIN spent USING (key_id)
     WHERE key.id = paced.key_id AND (paced.last_start_at IS NULL OR paced.last_start_at <= clock.latest_at)
)
SELECT is_closed, is_expired, is_early, verdict.is_revoked, clock_timestamp() AS database_time, start_at, attempt, retry, is_paced,
       (SELECT count(window_period) > 0 FROM spent) AS is_counted,
       CASE WHEN NOT %(is_durable)s::bool THEN set_config('synchronous_commit', 'off', true) END AS commit
  FROM mine
 CROSS JOIN clock
 CROSS JOIN verdict
  LEFT JOIN claimed ON true
