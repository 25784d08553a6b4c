-- keys_noted(changed): the CTE `keys_noted`: a note for each of these keys: the next trip looks at it, at its groups
-- and at the lanes that are parked on these.
keys_noted AS (
    INSERT INTO dispatcher_note (at, key_id)
    SELECT {{now}}, {{changed}}.id FROM {{changed}}
)
