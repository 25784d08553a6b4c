-- free_orphans: delete those of these slots whose call is not in flight, or is gone.
-- That is judged under the lock of the call: it may have been admitted meanwhile, and the slot be its own.
WITH orphan AS MATERIALIZED (
    SELECT slot.id, slot.call_id
      FROM dispatcher_slot AS slot
     WHERE slot.id = ANY (%(slots)s::bigint[])
), locked AS MATERIALIZED (
    SELECT call.id, call.state
      FROM dispatcher_callqueue AS call
     WHERE call.id IN (SELECT orphan.call_id FROM orphan)
     ORDER BY call.id
       FOR NO KEY UPDATE
)
DELETE FROM dispatcher_slot AS slot
 USING orphan
  LEFT JOIN locked ON locked.id = orphan.call_id
 WHERE slot.id = orphan.id AND (locked.id IS NULL OR locked.state NOT IN ('dispatched', 'active'))
RETURNING slot.key_id
