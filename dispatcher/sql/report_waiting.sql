-- report_waiting: the calls that wait for a key, in order of priority, then of sending, after a place in that order.
-- Each lane gives its first places from the index alone, and only the calls of the page are read: so neither the
-- backlog nor the number of lanes makes a page slow. Relies on call_waiting.
WITH spends AS MATERIALIZED (
    SELECT lane.id, lane.priority
      FROM dispatcher_ratelimitkey AS key
      JOIN dispatcher_lane AS lane ON lane.key_ids @> ARRAY[key.id] OR 'queue:' || lane.queue = key.name
     WHERE key.name = %(name)s::text AND (%(priority)s::int IS NULL OR lane.priority <= %(priority)s::int)
), page AS MATERIALIZED (
    SELECT spends.priority, place.position, place.lane_id
      FROM spends
     CROSS JOIN LATERAL (
           SELECT call.position, call.lane_id
             FROM dispatcher_callqueue AS call
            WHERE call.lane_id = spends.id AND call.state = 'available'
              AND call.position > CASE WHEN spends.priority = %(priority)s::int
                                       THEN %(position)s::bigint - (spends.id > %(lane)s::bigint)::int
                                       ELSE -9223372036854775808 END
            ORDER BY call.position
            LIMIT %(most)s::int) AS place
     ORDER BY spends.priority DESC, place.position, place.lane_id
     LIMIT %(most)s::int
)
SELECT call.id, call.task, call.state, call.queue, call.priority, call.position, call.lane_id, call.attempt,
       COALESCE((call.costs ->> %(name)s::text)::int, 1) AS cost, call.created_at,
       GREATEST(call.created_at, call.scheduled_at) AS since
  FROM page
  JOIN dispatcher_callqueue AS call
    ON call.lane_id = page.lane_id AND call.position = page.position AND call.state = 'available'
 ORDER BY call.priority DESC, call.position, call.lane_id, call.id
