-- free_orphans: delete slots whose call is not in flight, or is gone: of those named, or else of the next
-- `looked_at` after this one; up to `most` of them. Their keys get notes. `last` is where the next look goes on, or 0
-- where the table ends. Without names a slot whose call had started is kept until its lease is over: its process may
-- still run. A call that is there is judged under its lock, which is not waited for: it may have been taken
-- meanwhile, and the slot be its own. One that is not there can't come: a call and its slots are written by one
-- transaction, or in order.
WITH slice AS MATERIALIZED (
    SELECT slot.id, slot.call_id,
           slot.started_at IS NULL OR slot.lease_until < {{now}} AS is_over
      FROM (SELECT slot.id, slot.call_id, slot.started_at, slot.lease_until
              FROM dispatcher_slot AS slot
             WHERE %(slots)s::bigint[] IS NULL AND slot.id > %(after)s::bigint
             ORDER BY slot.id
             LIMIT %(looked_at)s::int) AS slot
     UNION ALL
    SELECT slot.id, slot.call_id, true
      FROM dispatcher_slot AS slot
     WHERE slot.id = ANY (%(slots)s::bigint[])
), orphan AS MATERIALIZED (
    -- Call by call, or the planner may read all calls to find these.
    SELECT slice.id, slice.call_id, call.id IS NULL AS is_gone
      FROM slice
      LEFT JOIN LATERAL (
           SELECT call.id, call.state
             FROM dispatcher_callqueue AS call
            WHERE call.id = slice.call_id
            LIMIT 1) AS call ON true
     WHERE slice.is_over AND (call.id IS NULL OR call.state NOT IN ('dispatched', 'active'))
     ORDER BY slice.id
     LIMIT %(most)s::int
), locked AS MATERIALIZED (
    SELECT call.id, call.state
      FROM dispatcher_callqueue AS call
     WHERE call.id = ANY (ARRAY(SELECT orphan.call_id FROM orphan WHERE NOT orphan.is_gone))
     ORDER BY call.id
       FOR NO KEY UPDATE SKIP LOCKED
), loose AS MATERIALIZED (
    SELECT slot.id
      FROM dispatcher_slot AS slot
     WHERE slot.id = ANY (ARRAY(SELECT orphan.id
                                  FROM orphan
                                  LEFT JOIN locked ON locked.id = orphan.call_id
                                 WHERE orphan.is_gone OR locked.state NOT IN ('dispatched', 'active')))
       FOR UPDATE SKIP LOCKED
), freed AS (
    DELETE FROM dispatcher_slot AS slot
     WHERE slot.id = ANY (ARRAY(SELECT loose.id FROM loose))
    RETURNING slot.key_id
), noted AS (
    INSERT INTO dispatcher_note (at, key_id)
    SELECT clock_timestamp(), freed.key_id FROM freed WHERE freed.key_id IS NOT NULL GROUP BY freed.key_id
)
SELECT (SELECT count(*) FROM freed) AS slots,
       CASE WHEN %(slots)s::bigint[] IS NOT NULL THEN 0
            WHEN (SELECT count(*) FROM orphan) = %(most)s::int THEN (SELECT max(orphan.id) FROM orphan)
            WHEN (SELECT count(*) FROM slice) = %(looked_at)s::int THEN (SELECT max(slice.id) FROM slice)
            ELSE 0 END AS last
