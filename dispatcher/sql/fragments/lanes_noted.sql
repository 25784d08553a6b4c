-- lanes_noted(moved, is_forced): the CTE `lanes_noted`: a note for the lane of each of these rows. The next trip makes
-- it ready if it sleeps; with `is_forced` also where it is parked, since its first call has changed. It has the lowest
-- of their positions, since trips look for calls of a lane from a position on (see lanes). It is due at once, also
-- where a test gives a time to come.
lanes_noted AS (
    INSERT INTO dispatcher_note (at, lane_id, is_forced, position)
    SELECT LEAST({{now}}, clock_timestamp()), {{moved}}.lane_id, {{is_forced}}::bool, min({{moved}}.position)
      FROM {{moved}}
     WHERE {{moved}}.lane_id IS NOT NULL
     GROUP BY {{moved}}.lane_id
)
