-- audit_unplaced: calls that were sent a while ago and have no lane yet, so that no trip could start them.
-- Relies on the index call_unplaced.
WITH late AS MATERIALIZED (
    SELECT call.id, call.position, call.state, call.queue, call.created_at, call.placement -> 'names' AS keys,
           call.xmin::text AS version
      FROM dispatcher_callqueue AS call
     WHERE {{is_unplaced(call)}}
       AND call.created_at < {{now}} - %(late)s::interval
     ORDER BY call.position, call.id
     LIMIT %(most)s::int
)
SELECT 'call ' || id AS what, id::text AS target, version,
       json_build_object('state', state, 'queue', queue, 'keys', keys, 'sent_at', created_at) AS facts,
       count(*) OVER () AS total
  FROM late
 ORDER BY position, id
