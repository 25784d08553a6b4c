-- lock_fetch: who fetches from this queue goes one after the other, so nobody finds its lanes locked by another fetcher and
-- comes back with nothing. Taken before any lane, for as long as the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('fetch:' || %(queue)s::text, 20251))::text AS lock
