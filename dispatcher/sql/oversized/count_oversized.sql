-- count_oversized: how many of the calls that wait for a key cost more of it than this; among the first `bound` of
-- them, lane by lane: those that wait alone already are read first of each. Relies on call_waiting and call_aside.
SELECT count(*) AS calls
  FROM (SELECT call.costs
          FROM dispatcher_ratelimitkey AS key
          JOIN dispatcher_lane AS lane ON {{lane_spends(lane, key)}}
         CROSS JOIN LATERAL (
               (SELECT aside.costs
                  FROM dispatcher_callqueue AS aside
                 WHERE {{waits_alone_in(aside, lane.id)}}
                 LIMIT %(bound)s::int)
               UNION ALL
               (SELECT in_line.costs
                  FROM dispatcher_callqueue AS in_line
                 WHERE {{waits_in(in_line, lane.id)}}
                 LIMIT %(bound)s::int)) AS call
         WHERE key.name = %(name)s::text
         LIMIT %(bound)s::int) AS waiting
 WHERE (waiting.costs ->> %(name)s::text)::int > %(cost)s::int
