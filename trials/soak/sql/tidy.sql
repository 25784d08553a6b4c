-- tidy: keep the idle database as it was at first.
VACUUM dispatcher_callqueue, dispatcher_slot, dispatcher_lane, dispatcher_ratelimitkey
