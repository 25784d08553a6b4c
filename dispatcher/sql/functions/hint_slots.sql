-- hint_slots: write on these keys below which id none of their slots is. While an old snapshot is held, slots that are
-- gone stay in the index, and each trip would read them all. The caller has locked the keys: slots of a key are made by
-- who has, so later ones have higher ids. One that lasts keeps the hint back. Relies on slot_key.
CREATE FUNCTION @hint_slots(p_keys bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE dispatcher_ratelimitkey AS key
     SET slots_from = COALESCE((SELECT slot.id
                                  FROM dispatcher_slot AS slot
                                 WHERE slot.key_id = key.id AND slot.id >= key.slots_from
                                 ORDER BY slot.key_id, slot.id
                                 LIMIT 1), key.slots_from)
   WHERE key.id = ANY (p_keys);
END $$;
