-- audit_old_transaction: transactions open for long: what died since cannot be cleaned up, and the hot tables swell.
-- Autovacuum is not among them: it delays only itself, and there is no remedy.
-- Of other users' sessions a role sees this only if it may read all statistics (pg_read_all_stats).
WITH open AS MATERIALIZED (
    SELECT 'session ' || activity.pid AS what, activity.pid::text AS target, activity.xact_start AS since,
           activity.application_name AS application, activity.state, left(activity.query, 60) AS query
      FROM pg_stat_activity AS activity
     WHERE activity.datname = current_database() AND activity.pid <> pg_backend_pid()
       AND (activity.backend_xmin IS NOT NULL OR activity.backend_xid IS NOT NULL)
       AND activity.backend_type IS DISTINCT FROM 'autovacuum worker'
     UNION ALL
    SELECT 'prepared transaction ' || prepared.gid, prepared.gid, prepared.prepared, NULL, NULL, NULL
      FROM pg_prepared_xacts AS prepared
     WHERE prepared.database = current_database()
)
SELECT what, target, '' AS version,
       json_build_object('open_for', justify_interval(date_trunc('second', clock_timestamp() - since)),
                         'application', application, 'state', state, 'query', query) AS facts,
       count(*) OVER () AS total
  FROM open
 WHERE since < clock_timestamp() - %(long)s::interval
 ORDER BY since, target
 LIMIT %(most)s::int
