-- forget_slots: empty the slots of the idle database.
DELETE FROM dispatcher_slot
