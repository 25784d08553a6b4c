-- tidy: keep the idle database as it was at first.
VACUUM dispatcher_callqueue, dispatcher_slot, dispatcher_lanesite, dispatcher_start, dispatcher_note
