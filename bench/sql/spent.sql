-- spent: transactions committed in this database, row versions replaced or deleted, and bytes of WAL of the server.
SELECT counted.xact_commit,
       (SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_user_tables),
       pg_current_wal_insert_lsn() - '0/0'
  FROM pg_stat_database AS counted
 WHERE counted.datname = current_database()
