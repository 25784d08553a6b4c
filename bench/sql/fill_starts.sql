-- fill_starts: let so many starts of cost 1 have been made of each of these keys, over the last 90 seconds; the windows of a
-- minute go on leaving them behind.
INSERT INTO dispatcher_start (key_id, at, total, cost, last_cost)
SELECT key.id, clock_timestamp() - (%(starts)s::int - turn) * (interval '90 seconds' / %(starts)s::int), turn, 1, 1
  FROM unnest(%(keys)s::bigint[]) AS key (id)
 CROSS JOIN generate_series(1, %(starts)s::int) AS turn
