-- fill_bare: the calls of the dispatcher's table, in the bare one.
INSERT INTO bench_call SELECT * FROM dispatcher_callqueue
