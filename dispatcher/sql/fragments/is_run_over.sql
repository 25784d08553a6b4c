-- is_run_over(run, task, moment): whether a worker may run a periodic task again that last began with this run.
-- A time in the future is of a clock that was set back.
{{run}}.ran_at NOT BETWEEN {{moment}} - CASE
    WHEN %(reaches)s::bool AND NOT {{run}}.reaches_broker THEN interval '0'
    WHEN {{run}}.reaches_broker AND NOT %(reaches)s::bool THEN 2 * {{task}}.every
    WHEN {{run}}.ran_by IS NULL THEN {{task}}.after
    ELSE {{task}}.every END AND {{moment}}
