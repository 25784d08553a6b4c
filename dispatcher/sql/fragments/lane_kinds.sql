-- lane_kinds: the parameter `kinds` as rows: what makes a lane.
json_to_recordset(%(kinds)s::json)
  AS kind (number int, queue text, priority smallint, on_limit text, names text[])
