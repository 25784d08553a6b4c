-- limit_key: change the stored limits of a key, in force from the next trip on, and leave a note for it; a strategy
-- that is not named stays as it is.
-- From now on it is a person's, and is kept even if it is unused; what the settings write stays a template's.
WITH limited AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET concurrency = CASE WHEN %(has_concurrency)s::bool THEN %(concurrency)s::int ELSE concurrency END,
           per_worker = CASE WHEN %(has_per_worker)s::bool THEN %(per_worker)s::int ELSE per_worker END,
           rate_limit = CASE WHEN %(has_rate)s::bool THEN %(rate_limit)s::int ELSE rate_limit END,
           rate_period = CASE WHEN %(has_rate)s::bool THEN %(rate_period)s::interval ELSE rate_period END,
           throttle_limit = CASE WHEN %(has_throttle)s::bool THEN %(throttle_limit)s::int ELSE throttle_limit END,
           throttle_period = CASE WHEN %(has_throttle)s::bool THEN %(throttle_period)s::interval
                                  ELSE throttle_period END,
           fair_by = CASE WHEN %(has_fair_by)s::bool THEN %(fair_by)s::text ELSE fair_by END,
           weight = CASE WHEN %(has_weight)s::bool THEN %(weight)s::smallint ELSE weight END,
           is_observed = CASE WHEN %(has_observe)s::bool THEN %(is_observed)s::bool ELSE is_observed END,
           is_from_template = is_from_template AND %(is_settings)s::bool, limited_at = {{now}}
     WHERE name = %(name)s::text
    RETURNING key.id
), {{keys_noted(limited)}}
SELECT id FROM limited
