-- report_keys: what keys allow, hold, have spent and keep waiting: those named, or all if names is NULL. Locks nothing.
-- One snapshot, so a call that starts meanwhile is neither missed nor counted twice. What a key allows, holds and has
-- spent is read by the function room, and when it opens by opening.
-- `mine`: the most that one worker holds, of keys with a limit per worker. `spent`: the cost of the starts that count
-- in the window; the first of them ceases to count at `frees_at`, the last at `resets_at`.
-- `delayed`, `longest`: what an observed key would have delayed since `limited_at`, see the function observe.
-- Waiting calls are counted lane by lane, from the index alone; the first in line is the oldest that was not moved to
-- the front. Calls without a lane are few.
-- What was counted is put together by full joins: these are hashed or merged, and never looped, whatever the statistics
-- say.
-- Relies on slot_key, start_key, call_waiting, call_aside, call_oversized and call_unplaced.
WITH {{clock}}, chosen AS MATERIALIZED (
    SELECT key.id, key.name, key,
           -- Its own limits hold again when an override has ended.
           GREATEST(key.limited_at, CASE WHEN key.override_until <= clock.now THEN key.override_until END) AS limited_at
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT id FROM dispatcher_ratelimitkey WHERE %(names)s::text[] IS NULL
                                UNION ALL
                               SELECT id FROM dispatcher_ratelimitkey WHERE name = ANY (%(names)s::text[])))
), allowed AS MATERIALIZED (
    SELECT allowed.id AS key_id, allowed.held, allowed.unstarted, allowed.room, allowed.next_at, allowed.spent,
           (allowed.observed).delayed, (allowed.observed).longest,
           allowed.spent_from + span.counts_for AS frees_at,
           CASE WHEN allowed.spent > 0 THEN allowed.last_at + span.counts_for END AS resets_at,
           {{@opening}}(allowed, 1, %(horizon)s::interval, %(margin)s::interval, %(ramp)s::interval, clock.now)
               AS opens_at
      FROM clock
     CROSS JOIN {{@room}}(ARRAY(SELECT chosen.id FROM chosen), NULL, clock.now, %(margin)s::interval,
                          %(ramp)s::interval) AS allowed
     CROSS JOIN LATERAL (
           SELECT COALESCE(allowed.rate_period, (allowed.observed).rate_period) + %(margin)s::interval AS counts_for
           ) AS span
), held AS MATERIALIZED (
    SELECT chosen.id AS key_id, COALESCE(max(of_worker.cost), 0) AS mine
      FROM chosen
     CROSS JOIN LATERAL (
           SELECT sum(slot.cost)::bigint AS cost
             FROM dispatcher_slot AS slot
            WHERE slot.key_id = chosen.id AND slot.worker_id IS NOT NULL
            GROUP BY slot.worker_id) AS of_worker
     WHERE COALESCE((chosen.key).per_worker, (chosen.key).override_per_worker) IS NOT NULL
     GROUP BY chosen.id
), line AS MATERIALIZED (
    SELECT lane.queue, lane.key_ids, waiting.calls, first.since
      FROM dispatcher_lane AS lane
     CROSS JOIN LATERAL (
           SELECT (SELECT count(*)
                     FROM dispatcher_callqueue AS call
                    WHERE {{waits_in(call, lane.id)}})
                  + (SELECT count(*)
                       FROM dispatcher_callqueue AS call
                      WHERE {{waits_alone_in(call, lane.id)}}) AS calls
           -- Or they would be counted again wherever they are named.
           OFFSET 0) AS waiting
     CROSS JOIN LATERAL (
           SELECT min(GREATEST(head.created_at, head.scheduled_at)) AS since
             FROM ((SELECT call.created_at, call.scheduled_at
                      FROM dispatcher_callqueue AS call
                     WHERE {{waits_in(call, lane.id)}}
                     ORDER BY call.position
                     LIMIT 1)
                    UNION ALL
                   (SELECT call.created_at, call.scheduled_at
                      FROM dispatcher_callqueue AS call
                     WHERE {{waits_in(call, lane.id)}}
                       AND call.position > 0
                     ORDER BY call.position
                     LIMIT 1)
                    UNION ALL
                   (SELECT call.created_at, call.scheduled_at
                      FROM dispatcher_callqueue AS call
                     WHERE {{waits_alone_in(call, lane.id)}}
                     ORDER BY call.position
                     LIMIT 1)) AS head) AS first
     WHERE waiting.calls > 0
       AND (%(names)s::text[] IS NULL
            OR lane.key_ids && ARRAY(SELECT chosen.id FROM chosen)
            OR lane.queue = ANY (ARRAY(SELECT substr(chosen.name, 7)
                                         FROM chosen
                                        WHERE starts_with(chosen.name, 'queue:'))))
), waiting AS MATERIALIZED (
    SELECT of_key.id AS key_id, sum(of_key.calls)::bigint AS calls, min(of_key.since) AS since
      FROM (SELECT named.id, line.calls, line.since
              FROM line
             CROSS JOIN LATERAL (
                   SELECT unnest(line.key_ids)
                    UNION
                   (SELECT key.id
                      FROM dispatcher_ratelimitkey AS key
                     WHERE key.name = 'queue:' || line.queue
                     LIMIT 1)) AS named (id)
             UNION ALL
            SELECT named.id, 1, GREATEST(call.created_at, call.scheduled_at)
              FROM dispatcher_callqueue AS call
             CROSS JOIN LATERAL (
                   SELECT jsonb_array_elements_text(call.placement -> 'names')
                    UNION
                   SELECT 'queue:' || call.queue) AS spends (name)
             CROSS JOIN LATERAL (
                   SELECT key.id FROM dispatcher_ratelimitkey AS key WHERE key.name = spends.name LIMIT 1) AS named
             WHERE {{is_unplaced(call)}} AND call.state = 'available') AS of_key
     GROUP BY of_key.id
)
SELECT clock.now AS at, chosen.id, chosen.name, (chosen.key).is_paused, (chosen.key).concurrency,
       (chosen.key).per_worker, (chosen.key).rate_limit, (chosen.key).rate_period, (chosen.key).throttle_limit,
       (chosen.key).throttle_period, (chosen.key).fair_by, (chosen.key).weight, (chosen.key).is_observed,
       (chosen.key).override_until, (chosen.key).override_concurrency, (chosen.key).override_per_worker,
       (chosen.key).override_rate_limit, (chosen.key).override_rate_period, (chosen.key).override_throttle_limit,
       (chosen.key).override_throttle_period,
       CASE WHEN (chosen.key).blocked_until > clock.now THEN (chosen.key).blocked_until END AS blocked_until,
       COALESCE(allowed.room = 0 AND (chosen.key).blocked_until <= clock.now, false) AS is_ramping,
       allowed.held AS in_flight, allowed.unstarted AS admitted, allowed.spent AS starts, allowed.frees_at,
       allowed.resets_at, allowed.next_at AS next_start_at, allowed.opens_at,
       allowed.delayed, allowed.longest, chosen.limited_at,
       COALESCE(held.mine, 0) AS most_of_one_worker,
       COALESCE(waiting.calls, 0) AS waiting, waiting.since AS waiting_since,
       (SELECT count(*) FROM dispatcher_callqueue AS call WHERE call.oversized_key_id = chosen.id) AS oversized
  FROM clock
 CROSS JOIN (chosen FULL JOIN allowed ON allowed.key_id = chosen.id
                    FULL JOIN held ON held.key_id = chosen.id
                    FULL JOIN waiting ON waiting.key_id = chosen.id)
 -- Lanes of chosen keys spend others, too. Written so that the join stays a full one.
 WHERE COALESCE(chosen.id, 0) > 0
 ORDER BY chosen.name, chosen.id
