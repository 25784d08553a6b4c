-- lanes_noted(moved, is_forced): the CTE `lanes_noted`: a note for the lane of each of these rows. The next trip makes
-- it ready if it sleeps; with `is_forced` also where it is parked, since its first call has changed.
lanes_noted AS (
    INSERT INTO dispatcher_note (at, lane_id, is_forced)
    SELECT DISTINCT clock_timestamp(), {{moved}}.lane_id, {{is_forced}}::bool
      FROM {{moved}}
     WHERE {{moved}}.lane_id IS NOT NULL
)
