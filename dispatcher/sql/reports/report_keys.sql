-- report_keys: what keys allow, hold, have spent and keep waiting: those named, or all if names is NULL. Locks nothing.
-- One snapshot, so a call that is admitted meanwhile is neither missed nor counted twice. Slots and starts are counted
-- as count_key_usage does; of a window with room only the sum is returned, at its first start and its last.
-- `mine`: the most that one worker holds, of keys with a limit per worker.
-- Waiting calls are counted lane by lane, from the index alone; the first in line is the oldest that was not moved to
-- the front. Calls without a lane are few.
-- What was counted is put together by full joins: these are hashed or merged, and never looped, whatever the statistics
-- say.
-- Relies on slot_key, the key of windows, call_waiting, call_aside, call_oversized and call_unplaced.
WITH {{clock}}, chosen AS MATERIALIZED (
    SELECT key.id, key.name, key.is_paused, key.blocked_until, key.last_start_at, key.last_cost,
           {{policy_columns(key)}}
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT id FROM dispatcher_ratelimitkey WHERE %(names)s::text[] IS NULL
                                UNION ALL
                               SELECT id FROM dispatcher_ratelimitkey WHERE name = ANY (%(names)s::text[])))
), starts AS MATERIALIZED (
    -- Of all keys, windows are read whole: key by key they would be read from everywhere.
    SELECT bucket.key_id, sum(bucket.cost)::bigint AS cost, min(bucket.last_start_at) AS first_at,
           max(bucket.last_start_at) AS last_at
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
      JOIN dispatcher_window AS bucket ON bucket.key_id = key.id
     WHERE %(names)s::text[] IS NULL
       AND {{may_count(bucket, key, clock.now)}}
     GROUP BY bucket.key_id
     UNION ALL
    SELECT chosen.id, counted.cost, counted.first_at, counted.last_at
      FROM clock
     CROSS JOIN chosen
     CROSS JOIN LATERAL (
           SELECT sum(bucket.cost)::bigint AS cost, min(bucket.last_start_at) AS first_at,
                  max(bucket.last_start_at) AS last_at
             FROM dispatcher_window AS bucket
            WHERE bucket.key_id = chosen.id
              AND {{may_count(bucket, chosen, clock.now)}}) AS counted
     WHERE %(names)s::text[] IS NOT NULL
), held AS MATERIALIZED (
    SELECT chosen.id AS key_id, slots.cost, slots.unstarted, most.mine
      FROM chosen
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(slot.cost), 0)::bigint AS cost,
                  COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0)::bigint AS unstarted
             FROM dispatcher_slot AS slot
            WHERE slot.key_id = chosen.id) AS slots
     CROSS JOIN LATERAL (
           SELECT COALESCE(max(of_worker.cost), 0) AS mine
             FROM (SELECT sum(slot.cost)::bigint AS cost
                     FROM dispatcher_slot AS slot
                    WHERE slot.key_id = chosen.id AND slot.worker_id IS NOT NULL
                      AND COALESCE(chosen.per_worker, chosen.override_per_worker) IS NOT NULL
                    GROUP BY slot.worker_id) AS of_worker) AS most
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
SELECT clock.now, chosen.id, chosen.name, chosen.is_paused, chosen.blocked_until, chosen.last_start_at,
       chosen.last_cost, {{policy_columns(chosen)}}, held.cost AS held, held.mine, held.unstarted,
       CASE WHEN starts.cost IS NULL THEN '{}' WHEN room.is_left THEN ARRAY[starts.first_at, starts.last_at]
            ELSE parts.at END AS start_at,
       CASE WHEN starts.cost IS NULL THEN '{}' WHEN room.is_left THEN ARRAY[starts.cost, 0]
            ELSE parts.cost END AS start_cost,
       COALESCE(waiting.calls, 0) AS waiting, waiting.since AS waiting_since,
       (SELECT count(*) FROM dispatcher_callqueue AS call WHERE call.oversized_key_id = chosen.id) AS oversized
  FROM clock
 CROSS JOIN (chosen FULL JOIN held ON held.key_id = chosen.id
                    FULL JOIN starts ON starts.key_id = chosen.id
                    FULL JOIN waiting ON waiting.key_id = chosen.id)
 CROSS JOIN LATERAL (
       SELECT starts.cost IS NULL
              OR COALESCE(chosen.override_until IS NULL AND held.unstarted + starts.cost < chosen.rate_limit, false)
              AS is_left) AS room
 CROSS JOIN LATERAL (
       SELECT array_agg(bucket.last_start_at ORDER BY bucket.last_start_at) AS at,
              array_agg(bucket.cost ORDER BY bucket.last_start_at) AS cost
         FROM dispatcher_window AS bucket
        WHERE bucket.key_id = chosen.id AND NOT room.is_left
          AND {{may_count(bucket, chosen, clock.now)}}) AS parts
 -- Lanes of chosen keys spend others, too. Written so that the join stays a full one.
 WHERE COALESCE(chosen.id, 0) > 0
 ORDER BY chosen.name, chosen.id
