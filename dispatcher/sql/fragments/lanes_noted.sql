-- lanes_noted(moved, is_forced, waits_from): the CTE `lanes_noted`: a note for the lane of each of these rows. The next
-- trip makes it ready if it sleeps; with `is_forced` also where it is parked, since its first call has changed.
-- `waits_from`: the lowest position of those that wait now; NULL: any.
lanes_noted AS (
    INSERT INTO dispatcher_note (at, lane_id, is_forced, waits_from)
    SELECT clock_timestamp(), {{moved}}.lane_id, {{is_forced}}::bool, min({{waits_from}})
      FROM {{moved}}
     WHERE {{moved}}.lane_id IS NOT NULL
     GROUP BY {{moved}}.lane_id
)
