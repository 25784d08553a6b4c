-- delete_keys: delete keys that nothing spends; the caller has locked them, and looked under the locks.
-- Their last starts go with trim_starts.
DELETE FROM dispatcher_ratelimitkey WHERE id = ANY (%(ids)s::bigint[])
