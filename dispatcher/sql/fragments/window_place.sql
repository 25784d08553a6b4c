-- window_place(moment): the part of a window that a start belongs to: its place in a lap of 2.5 times the longest
-- that a start may count. Columns: `longest`, `window_period`.
trunc(mod(EXTRACT(EPOCH FROM {{moment}}), EXTRACT(EPOCH FROM 2.5 * longest))
      / EXTRACT(EPOCH FROM window_period / %(buckets)s::int))
