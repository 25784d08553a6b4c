-- forget_calls: empty the calls of the idle database.
DELETE FROM dispatcher_callqueue
