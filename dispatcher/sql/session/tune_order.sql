-- tune_order: for this transaction, read rows in the order of an index where one has it: a bitmap would be sorted,
-- which looks cheap where the statistics say that few rows would do.
-- Not for statements that find rows by an array and then order them: up to PostgreSQL 16, these would be looked for
-- among all.
SELECT set_config('enable_bitmapscan', 'off', true) AS enable_bitmapscan,
       set_config('enable_sort', 'off', true) AS enable_sort
