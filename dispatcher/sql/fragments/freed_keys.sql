-- freed_keys: the keys of the slots that were deleted (see slots_freed).
ARRAY(SELECT key_id FROM freed WHERE key_id IS NOT NULL ORDER BY key_id)
