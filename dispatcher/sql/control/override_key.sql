-- override_key: put other limits in force until a time; a strategy that is not named is copied from the key's own.
-- Leaves a note for the key now, and one for the end: its own limits are in force then by reading alone.
WITH overridden AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET override_until = %(until)s::timestamptz, limited_at = {{now}},
           override_concurrency = CASE WHEN %(has_concurrency)s::bool THEN %(concurrency)s::int ELSE concurrency END,
           override_per_worker = CASE WHEN %(has_per_worker)s::bool THEN %(per_worker)s::int ELSE per_worker END,
           override_rate_limit = CASE WHEN %(has_rate)s::bool THEN %(rate_limit)s::int ELSE rate_limit END,
           override_rate_period = CASE WHEN %(has_rate)s::bool THEN %(rate_period)s::interval ELSE rate_period END,
           override_throttle_limit = CASE WHEN %(has_throttle)s::bool THEN %(throttle_limit)s::int
                                          ELSE throttle_limit END,
           override_throttle_period = CASE WHEN %(has_throttle)s::bool THEN %(throttle_period)s::interval
                                           ELSE throttle_period END
     WHERE name = %(name)s::text
    RETURNING key.id
), noted_end AS (
    INSERT INTO dispatcher_note (at, key_id)
    SELECT %(until)s::timestamptz, overridden.id FROM overridden
), {{keys_noted(overridden)}}
SELECT id FROM overridden
