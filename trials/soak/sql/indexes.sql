-- indexes: how often each index of the dispatcher was used.
SELECT indexrelname AS name, idx_scan AS scans
  FROM pg_stat_user_indexes
 WHERE relname ~ '^dispatcher_'
 ORDER BY name
