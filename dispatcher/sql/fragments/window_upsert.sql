-- window_upsert(spent): add starts to the parts of windows. What a part holds from the lap before is taken over, so
-- that a busy window is updated in place; what may still count, as when a period has changed, is added to. `spent`
-- has `key_id` and `longest`.
ON CONFLICT (key_id, place) DO UPDATE
SET last_start_at = GREATEST(bucket.last_start_at, excluded.last_start_at),
    cost = excluded.cost + CASE WHEN (SELECT now - bucket.last_start_at < 2 * longest
                                        FROM clock, {{spent}} WHERE key_id = bucket.key_id) THEN bucket.cost ELSE 0 END
