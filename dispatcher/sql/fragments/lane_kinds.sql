-- lane_kinds: the parameter `kinds` as rows: what makes a lane, and for send_calls also when a call of it may start.
json_to_recordset(%(kinds)s::json)
  AS kind (number int, queue text, priority smallint, on_limit text, names text[], placement jsonb,
           soonest timestamptz)
