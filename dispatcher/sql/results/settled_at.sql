-- settled_at: before when nothing more can come: the start of the oldest transaction that writes rows of these tables.
-- Its times are later than its start, and seen after its commit. It is taken to have begun `unseen` ago if it is of a
-- session whose start this role may not see (pg_read_all_stats), and that long before it was prepared if it is
-- prepared.
SELECT LEAST(statement_timestamp(),
             min(CASE WHEN prepared.prepared IS NOT NULL THEN prepared.prepared - %(unseen)s::interval
                      WHEN activity.query = '<insufficient privilege>' THEN statement_timestamp() - %(unseen)s::interval
                      ELSE activity.xact_start END)) AS at
  FROM pg_locks AS held
  LEFT JOIN pg_stat_activity AS activity ON activity.pid = held.pid
  LEFT JOIN pg_prepared_xacts AS prepared ON held.virtualtransaction = '-1/' || prepared.transaction
 WHERE held.locktype = 'relation' AND held.mode = 'RowExclusiveLock' AND held.granted
   AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND held.relation = ANY (%(tables)s::text[]::regclass[])
   AND held.pid IS DISTINCT FROM pg_backend_pid()
