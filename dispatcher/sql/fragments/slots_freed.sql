-- slots_freed(ended): the CTEs `freed`, which deletes the slots of calls that no longer hold any, and `noted`, a note
-- for each key of theirs: the next trip looks at it and at the lanes that are parked on it.
freed AS (
    DELETE FROM dispatcher_slot AS slot
     USING {{ended}}
     WHERE slot.call_id = {{ended}}.id
    RETURNING slot.key_id
), noted AS (
    INSERT INTO dispatcher_note (at, key_id)
    SELECT DISTINCT LEAST({{now}}, clock_timestamp()), freed.key_id FROM freed WHERE freed.key_id IS NOT NULL
)
