-- lock_session: hold the lock of this process as long as the session lasts. Who can share it knows that the session is
-- over, so that nothing it has sent can still commit. An earlier session is ended: after a cut of the network the
-- server may believe in it for hours, as nothing is sent on it any more.
WITH earlier AS MATERIALIZED (
    SELECT pg_terminate_backend(lock.pid)
      FROM pg_locks AS lock
     WHERE lock.locktype = 'advisory' AND lock.objsubid = 1 AND lock.mode = 'ExclusiveLock' AND lock.granted
       AND lock.database = (SELECT mine.oid FROM pg_database AS mine WHERE mine.datname = current_database())
       AND (lock.classid::bigint << 32) | lock.objid::bigint = hashtextextended(%(process)s::uuid::text, 0)
       AND lock.pid <> pg_backend_pid()
)
SELECT pg_advisory_lock(hashtextextended(%(process)s::uuid::text, 0)) FROM (SELECT count(*) FROM earlier) AS ended
