-- lane_kinds: the parameter `kinds` as rows: what makes a lane.
jsonb_to_recordset(%(kinds)s::jsonb) AS kind (number int, queue text, priority smallint, on_limit text, names text[])
