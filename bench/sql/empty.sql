-- empty: forget all calls, lanes and keys. The database is the benchmark's own.
TRUNCATE dispatcher_callqueue, dispatcher_slot, dispatcher_start, dispatcher_share, dispatcher_note, dispatcher_lane,
         dispatcher_lanesite, dispatcher_block, dispatcher_ratelimitkey CASCADE
