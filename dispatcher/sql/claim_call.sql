-- claim_call: win the right to run one attempt; this is the start, and it is stamped on the windows and throttles.
-- No row back means the ticket was used or replaced. `claim` names this one claim: whoever lost its answer knows it by
-- that. `is_closed`: a key was paused or blocked since the admission; `is_expired`: the call did not start in time; nothing
-- was changed then. Under a throttle the start lies ahead, by `lead` at least: the worker waits for it.
-- With `is_late`, the claim that won asks for another start, since it overslept the first or lost the answer: the start
-- that it missed stays unused, those after it keep theirs, and so the spacing holds. `slack` is how late it may come: the
-- next start lies that much further off, and a window remembers it that much longer. A start that a window has forgotten
-- by now has left its room to others: then the key counts as closed, and the call must be admitted anew.
-- With `is_durable` the commit waits for the disk as the server's setting says; else what a crash loses of it, the finish
-- still proves.
WITH mine AS MATERIALIZED (
    SELECT call.id, call.expires_at
      FROM dispatcher_callqueue AS call
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid
       AND call.state = CASE WHEN %(is_late)s::bool THEN 'active' ELSE 'dispatched' END
       AND (call.claim = %(claim)s::uuid OR NOT %(is_late)s::bool)
       FOR NO KEY UPDATE
), spent AS MATERIALIZED (
    SELECT slot.key_id, slot.cost, slot.started_at, key.is_paused, key.blocked_until,
           CASE WHEN override.holds THEN key.override_concurrency ELSE key.concurrency END AS concurrency,
           CASE WHEN override.holds THEN key.override_rate_period ELSE key.rate_period END AS window_period,
           CASE WHEN override.holds THEN key.override_throttle_period ELSE key.throttle_period END AS throttle_period,
           CASE WHEN override.holds THEN key.override_throttle_limit ELSE key.throttle_limit END AS throttle_limit
      FROM mine
      JOIN dispatcher_slot AS slot ON slot.call_id = mine.id
      JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
     CROSS JOIN LATERAL (
           SELECT key.override_until > COALESCE(%(now)s::timestamptz, clock_timestamp()) AS holds) AS override
), paced AS MATERIALIZED (
    SELECT key.id, key.next_start_at, key.is_paused, key.blocked_until
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id IN (SELECT key_id FROM spent WHERE throttle_period IS NOT NULL)
     ORDER BY key.id
       FOR NO KEY UPDATE
), clock AS MATERIALIZED (
    SELECT now, CASE WHEN is_paced THEN GREATEST(now + %(lead)s::interval, next_start_at) ELSE now END AS start_at
      FROM (SELECT max(paced.next_start_at) AS next_start_at, count(*) > 0 AS is_paced,
                   COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
              FROM paced) AS locked
), verdict AS MATERIALIZED (
    SELECT EXISTS (SELECT
                     FROM spent
                    WHERE spent.is_paused OR spent.blocked_until > clock.now OR spent.concurrency = 0
                       OR (%(is_late)s::bool AND spent.started_at + spent.window_period <= clock.start_at)
                    UNION ALL
                   SELECT
                     FROM paced
                    WHERE paced.is_paused OR paced.blocked_until > clock.now) AS is_closed,
           NOT %(is_late)s::bool AND EXISTS (SELECT FROM mine WHERE mine.expires_at <= clock.now) AS is_expired
      FROM clock
), claimed AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'active', claim = %(claim)s::uuid, started_at = clock.start_at,
           attempt = call.attempt + CASE WHEN %(is_late)s::bool THEN 0 ELSE 1 END,
           published_at = COALESCE(call.published_at, clock.now)
      FROM mine, clock, verdict
     WHERE call.id = mine.id AND call.ticket = %(ticket)s::uuid AND call.state IN ('dispatched', 'active')
       AND NOT verdict.is_closed AND NOT verdict.is_expired
    RETURNING call.id, call.attempt, call.retry
), started AS (
    UPDATE dispatcher_slot AS slot
       SET started_at = clock.start_at, lease_until = clock.start_at + %(lease)s::interval, worker_id = %(worker)s::uuid
      FROM claimed, clock
     WHERE slot.call_id = claimed.id
), counted AS (
    INSERT INTO dispatcher_window AS bucket (key_id, bucket_at, cost, last_start_at)
    SELECT spent.key_id, date_bin(spent.window_period / %(buckets)s::int, clock.start_at + %(slack)s::interval, 'epoch'),
           spent.cost, clock.start_at + %(slack)s::interval
      FROM claimed, clock, spent
     WHERE spent.window_period IS NOT NULL
     ORDER BY spent.key_id
        ON CONFLICT (key_id, bucket_at) DO UPDATE
       SET cost = bucket.cost + excluded.cost, last_start_at = GREATEST(bucket.last_start_at, excluded.last_start_at)
), spaced AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET next_start_at = clock.start_at + %(slack)s::interval + make_interval(secs =>
               ceil(EXTRACT(EPOCH FROM spent.throttle_period) * 1e6 * spent.cost / spent.throttle_limit)::float8 / 1e6)
      FROM claimed, clock, paced
      JOIN spent ON spent.key_id = paced.id
     WHERE key.id = paced.id
)
SELECT verdict.is_closed, verdict.is_expired, clock_timestamp() AS told_at, clock.start_at, claimed.attempt, claimed.retry,
       EXISTS (SELECT FROM paced) AS is_paced, EXISTS (SELECT FROM spent WHERE window_period IS NOT NULL) AS is_counted,
       set_config('synchronous_commit',
                  CASE WHEN %(is_durable)s::bool THEN current_setting('synchronous_commit') ELSE 'off' END, true) AS commit
  FROM mine
 CROSS JOIN clock
 CROSS JOIN verdict
  LEFT JOIN claimed ON true
