-- lock_session: hold the lock of this process as long as the session lasts. Who can share it knows that the session is
-- over, so that nothing it has sent can still commit.
SELECT pg_advisory_lock(hashtextextended(%(process)s::uuid::text, 0))
