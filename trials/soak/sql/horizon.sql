-- horizon: how many transactions back the oldest snapshot lies that somebody still looks at.
SELECT COALESCE(max(age(backend_xmin)), 0) AS age
  FROM pg_stat_activity
 WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
