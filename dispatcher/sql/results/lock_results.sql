-- lock_results: be the only one to store results until the transaction ends, without waiting; return whether it is.
SELECT pg_try_advisory_xact_lock(hashtextextended('dispatcher results', 0))
