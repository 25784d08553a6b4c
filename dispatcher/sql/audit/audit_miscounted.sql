-- audit_miscounted: keys of whose starts a running total is not that of the start before and its own cost: their
-- windows count too much or too little. Starts are kept for as long as a window may count them, and are read whole, in
-- the order of the index start_key.
WITH running AS MATERIALIZED (
    SELECT start.key_id, start.at, start.cost, start.total, lag(start.total) OVER turn AS earlier
      FROM dispatcher_start AS start
    WINDOW turn AS (PARTITION BY start.key_id ORDER BY start.at, start.total)
)
SELECT 'key ' || COALESCE(key.name, running.key_id::text) AS what, running.key_id::text AS target, '' AS version,
       json_build_object('started_at', running.at, 'cost', running.cost, 'total', running.total,
                         'earlier_total', running.earlier) AS facts,
       count(*) OVER () AS total
  FROM running
  LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = running.key_id
 WHERE running.total <> running.earlier + running.cost
 ORDER BY running.key_id, running.at, running.total
 LIMIT %(most)s::int
