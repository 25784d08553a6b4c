-- count_oversized: how many of the calls that wait for a key cost more of it than this; among the first `bound` of
-- them.
-- Those that wait alone already are read first. It reads the costs of calls, lane by lane. Relies on call_waiting and
-- call_aside.
WITH spends AS MATERIALIZED (
    SELECT lane.id
      FROM dispatcher_ratelimitkey AS key
      JOIN dispatcher_lane AS lane ON {{lane_spends(lane, key)}}
     WHERE key.name = %(name)s::text
), aside AS MATERIALIZED (
    SELECT call.costs
      FROM spends
     CROSS JOIN LATERAL (
           SELECT call.costs
             FROM dispatcher_callqueue AS call
            WHERE {{waits_alone_in(call, spends.id)}}
            LIMIT %(bound)s::int) AS call
     LIMIT %(bound)s::int
), in_line AS MATERIALIZED (
    SELECT call.costs
      FROM spends
     CROSS JOIN LATERAL (
           SELECT call.costs
             FROM dispatcher_callqueue AS call
            WHERE {{waits_in(call, spends.id)}}
            LIMIT %(bound)s::int) AS call
     LIMIT %(bound)s::int
)
SELECT count(*) AS calls
  FROM (SELECT costs FROM aside UNION ALL SELECT costs FROM in_line) AS waiting
 WHERE (waiting.costs ->> %(name)s::text)::int > %(cost)s::int
