-- delete_keys: delete keys that nothing spends; the caller has locked them, and looked under the locks.
-- What is left of their windows goes with trim_windows.
DELETE FROM dispatcher_ratelimitkey WHERE id = ANY (%(ids)s::bigint[])
