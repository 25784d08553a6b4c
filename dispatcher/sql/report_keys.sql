-- report_keys: what keys allow, hold, have spent and keep waiting: those named, or all if names is NULL. Locks nothing.
-- One snapshot, so a call that is admitted meanwhile is neither missed nor counted twice. Slots and starts are counted
-- as look_keys does. Waiting calls are counted lane by lane, from the index alone; the first in line is the oldest that
-- was not moved to the front. Relies on slot_key, the key of windows and call_waiting.
WITH clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
), chosen AS NOT MATERIALIZED (
    SELECT key.id, key.name, key.is_paused, key.blocked_until, key.next_start_at,
           key.concurrency, key.rate_limit, key.rate_period, key.throttle_limit, key.throttle_period,
           key.override_until, key.override_concurrency, key.override_rate_limit, key.override_rate_period,
           key.override_throttle_limit, key.override_throttle_period
      FROM dispatcher_ratelimitkey AS key
     WHERE %(names)s::text[] IS NULL OR key.name = ANY (%(names)s::text[])
), held AS (
    SELECT slot.key_id, sum(slot.cost)::bigint AS cost,
           (sum(slot.cost) FILTER (WHERE slot.started_at IS NULL))::bigint AS unstarted
      FROM chosen
      JOIN dispatcher_slot AS slot ON slot.key_id = chosen.id
     GROUP BY slot.key_id
), starts AS (
    SELECT bucket.key_id, array_agg(bucket.last_start_at ORDER BY bucket.last_start_at) AS at,
           array_agg(bucket.cost ORDER BY bucket.last_start_at) AS cost
      FROM clock
     CROSS JOIN chosen
      JOIN dispatcher_window AS bucket ON bucket.key_id = chosen.id
     WHERE bucket.last_start_at > clock.now - %(margin)s::interval - GREATEST(chosen.rate_period, chosen.override_rate_period)
     GROUP BY bucket.key_id
), spends AS MATERIALIZED (
    SELECT lane.id AS lane_id, named.key_id
      FROM dispatcher_lane AS lane
     CROSS JOIN LATERAL unnest(lane.key_ids) AS named (key_id)
     WHERE named.key_id IN (SELECT chosen.id FROM chosen)
     UNION
    SELECT lane.id, chosen.id
      FROM chosen
      JOIN dispatcher_lane AS lane ON lane.queue = substr(chosen.name, 7)
     WHERE starts_with(chosen.name, 'queue:')
), line AS (
    SELECT lane.id, line.calls, first.since
      FROM (SELECT DISTINCT lane_id FROM spends) AS lane (id)
     CROSS JOIN LATERAL (
           SELECT count(*) AS calls
             FROM dispatcher_callqueue AS call
            WHERE call.lane_id = lane.id AND call.state = 'available') AS line
      LEFT JOIN LATERAL (
           SELECT min(GREATEST(head.created_at, head.scheduled_at)) AS since
             FROM ((SELECT call.created_at, call.scheduled_at
                      FROM dispatcher_callqueue AS call
                     WHERE call.lane_id = lane.id AND call.state = 'available'
                     ORDER BY call.position
                     LIMIT 1)
                    UNION ALL
                   (SELECT call.created_at, call.scheduled_at
                      FROM dispatcher_callqueue AS call
                     WHERE call.lane_id = lane.id AND call.state = 'available' AND call.position > 0
                     ORDER BY call.position
                     LIMIT 1)) AS head) AS first ON line.calls > 0
     WHERE line.calls > 0
), waiting AS (
    SELECT spends.key_id, sum(line.calls)::bigint AS calls, min(line.since) AS since
      FROM line
      JOIN spends ON spends.lane_id = line.id
     GROUP BY spends.key_id
)
SELECT clock.now, chosen.id, chosen.name, chosen.is_paused, chosen.blocked_until, chosen.next_start_at,
       chosen.concurrency, chosen.rate_limit, chosen.rate_period, chosen.throttle_limit, chosen.throttle_period,
       chosen.override_until, chosen.override_concurrency, chosen.override_rate_limit, chosen.override_rate_period,
       chosen.override_throttle_limit, chosen.override_throttle_period,
       COALESCE(held.cost, 0) AS held, COALESCE(held.unstarted, 0) AS unstarted,
       COALESCE(starts.at, '{}') AS start_at, COALESCE(starts.cost, '{}') AS start_cost,
       COALESCE(waiting.calls, 0) AS waiting, waiting.since AS waiting_since
  FROM clock
 CROSS JOIN chosen
  LEFT JOIN held ON held.key_id = chosen.id
  LEFT JOIN starts ON starts.key_id = chosen.id
  LEFT JOIN waiting ON waiting.key_id = chosen.id
 ORDER BY chosen.name, chosen.id
