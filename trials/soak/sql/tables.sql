-- tables: what the server has counted of the dispatcher's tables since it was asked first.
SELECT relname AS name, n_dead_tup AS dead, n_tup_del AS deleted, autovacuum_count AS vacuums
  FROM pg_stat_user_tables
 WHERE relname ~ '^dispatcher_'
 ORDER BY name
