-- empty: forget all calls, lanes and keys. The database is the benchmark's own.
TRUNCATE dispatcher_callqueue, dispatcher_slot, dispatcher_window, dispatcher_lane, dispatcher_ratelimitkey, bench_call
         CASCADE
