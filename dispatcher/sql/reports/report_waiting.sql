-- report_waiting: the calls that wait for a key, in order of priority, then of sending, after a place in that order.
-- Each lane gives its first places from the index alone, and only the calls of the page are read: so neither the
-- backlog nor the number of lanes makes a page slow. Calls without a lane, of which there are few, count as those of
-- lane 0.
-- Relies on call_waiting, call_aside and call_unplaced.
WITH spends AS MATERIALIZED (
    SELECT lane.id, lane.priority
      FROM dispatcher_ratelimitkey AS key
      JOIN dispatcher_lane AS lane ON {{lane_spends(lane, key)}}
     WHERE key.name = %(name)s::text AND (%(priority)s::int IS NULL OR lane.priority <= %(priority)s::int)
), page AS MATERIALIZED (
    SELECT found.priority, found.position, found.lane_id, found.id
      FROM (SELECT spends.priority, place.position, place.lane_id, NULL::uuid AS id
              FROM spends
             CROSS JOIN LATERAL (
                   SELECT CASE WHEN spends.priority = %(priority)s::int
                               THEN %(position)s::bigint - (spends.id > %(lane)s::bigint)::int
                               ELSE -9223372036854775808 END AS position) AS after
             CROSS JOIN LATERAL (
                   (SELECT call.position, call.lane_id
                      FROM dispatcher_callqueue AS call
                     WHERE {{waits_in(call, spends.id)}}
                       AND call.position > after.position
                     ORDER BY call.position
                     LIMIT %(most)s::int)
                   UNION ALL
                   (SELECT call.position, call.lane_id
                      FROM dispatcher_callqueue AS call
                     WHERE {{waits_alone_in(call, spends.id)}} AND call.position > after.position
                     ORDER BY call.position
                     LIMIT %(most)s::int)) AS place
             UNION ALL
            SELECT call.priority, call.position, 0, call.id
              FROM dispatcher_callqueue AS call
             WHERE {{is_unplaced(call)}} AND call.state = 'available'
               AND (call.placement -> 'names' ? %(name)s::text OR 'queue:' || call.queue = %(name)s::text)
               AND (%(priority)s::int IS NULL OR call.priority < %(priority)s::int
                    OR (call.priority = %(priority)s::int AND call.position > %(position)s::bigint))) AS found
     ORDER BY found.priority DESC, found.position, found.lane_id
     LIMIT %(most)s::int
), placed AS (
    SELECT page.lane_id, call.id, call.task, call.state, call.queue, call.priority, call.position, call.attempt,
           call.costs, call.created_at, call.scheduled_at
      FROM page
     CROSS JOIN LATERAL (
           SELECT page.id WHERE page.id IS NOT NULL
           UNION ALL
           (SELECT call.id
              FROM dispatcher_callqueue AS call
             WHERE {{waits_in(call, page.lane_id)}} AND call.position = page.position)
           UNION ALL
           (SELECT call.id
              FROM dispatcher_callqueue AS call
             WHERE {{waits_alone_in(call, page.lane_id)}} AND call.position = page.position)) AS found
      JOIN dispatcher_callqueue AS call ON call.id = found.id
)
SELECT id, task, state, queue, priority, position, lane_id, attempt,
       COALESCE((costs ->> %(name)s::text)::int, 1) AS cost,
       created_at, GREATEST(created_at, scheduled_at) AS since
  FROM placed
 ORDER BY priority DESC, position, lane_id, id
