-- slots_freed(ended): the CTE `freed`: delete the slots of calls that no longer hold any.
freed AS (
    DELETE FROM dispatcher_slot AS slot
     USING {{ended}}
     WHERE slot.call_id = {{ended}}.id
    RETURNING slot.key_id
)
