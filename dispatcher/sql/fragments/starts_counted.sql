-- starts_counted(moment): the CTE `counted`: count a start at a moment in the windows of the keys that `spent` lists.
-- In one order for all: they wait for each other at the rows.
counted AS (
    INSERT INTO dispatcher_window AS bucket (key_id, place, cost, last_start_at)
    SELECT key_id, {{window_place({{moment}})}}, cost, {{moment}}
      FROM claimed, clock, spent
     WHERE window_period IS NOT NULL
     ORDER BY key_id
    {{window_upsert(spent)}}
)
