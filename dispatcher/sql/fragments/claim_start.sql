-- claim_start(next, at): a subquery: the columns `now`, `start_at` and `is_paced`. Under a throttle the start is
-- ahead, by `lead` at least: the worker waits for it. `next`: when a row of the CTE named by `at` allows the start.
SELECT now, start_at, is_paced
  FROM moment
 CROSS JOIN (SELECT count(*) > 0 AS is_paced, max({{next}}) AS next_start_at FROM {{at}}) AS pace
 CROSS JOIN LATERAL (
       SELECT GREATEST(now, next_start_at, CASE WHEN is_paced THEN now + %(lead)s::interval END) AS start_at) AS next
