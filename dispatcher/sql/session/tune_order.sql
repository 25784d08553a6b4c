-- tune_order: for this transaction, read rows in the order of an index where one has it: a bitmap would be sorted,
-- which looks cheap where the statistics say that few rows would do.
-- `sorts` is off where no rows are found by an array and then ordered: up to PostgreSQL 16, these would be looked for
-- among all.
SELECT set_config('enable_bitmapscan', 'off', true) AS enable_bitmapscan,
       set_config('enable_sort', %(sorts)s::text, true) AS enable_sort
