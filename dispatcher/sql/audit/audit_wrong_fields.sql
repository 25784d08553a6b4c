-- audit_wrong_fields: calls whose fields do not go together: of those in flight, those that are due without a time,
-- those that have finished without an end, and the newest `newest` of all. Of ended calls and of the backlog the others
-- are not read: there may be millions. No constraint says this, since each would be checked at every write.
-- Relies on call_in_flight, call_due, call_ended and the primary key, which is in order of time.
WITH looked_at AS MATERIALIZED (
    SELECT call.id FROM dispatcher_callqueue AS call WHERE call.state IN ('dispatched', 'active')
     UNION
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.state IN ('scheduled', 'retryable') AND call.scheduled_at IS NULL
     UNION
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.finished_at IS NOT NULL
       AND call.state IN ('scheduled', 'pending', 'available', 'dispatched', 'active', 'retryable')
     UNION
    (SELECT call.id FROM dispatcher_callqueue AS call ORDER BY call.id DESC LIMIT %(newest)s::int)
), judged AS MATERIALIZED (
    SELECT call.id, call.state, call.queue,
           ARRAY_REMOVE(ARRAY[
             CASE WHEN call.state NOT IN ('scheduled', 'pending', 'available', 'dispatched', 'active', 'retryable',
                                          'completed', 'cancelled', 'discarded') THEN 'state' END,
             CASE WHEN (call.state IN ('dispatched', 'active')) <> (call.ticket IS NOT NULL) THEN 'ticket' END,
             CASE WHEN call.state = 'active' AND call.started_at IS NULL THEN 'started_at' END,
             CASE WHEN (call.state IN ('completed', 'cancelled', 'discarded')) <> (call.finished_at IS NOT NULL)
                  THEN 'finished_at' END,
             CASE WHEN call.state IN ('scheduled', 'retryable') AND call.scheduled_at IS NULL THEN 'scheduled_at' END,
             CASE WHEN (call.lane_id IS NULL) <> (call.placement IS NOT NULL) THEN 'placement' END,
             CASE WHEN call.state IN ('dispatched', 'active') AND call.lane_id IS NULL THEN 'lane' END,
             CASE WHEN call.oversized_key_id IS NOT NULL AND call.state <> 'available' THEN 'oversized_key' END,
             CASE WHEN (call.oversized_key_id IS NULL) <> (call.oversized_cost IS NULL) THEN 'oversized_cost' END,
             CASE WHEN (call.state = 'discarded') <> (call.reason IS NOT NULL) THEN 'reason' END], NULL) AS fields
      FROM dispatcher_callqueue AS call
     WHERE call.id = ANY (ARRAY(SELECT looked_at.id FROM looked_at))
)
SELECT 'call ' || judged.id AS what, judged.id::text AS target, '' AS version,
       json_build_object('state', judged.state, 'queue', judged.queue, 'fields', judged.fields) AS facts,
       count(*) OVER () AS total
  FROM judged
 WHERE judged.fields <> '{}'
 ORDER BY judged.id
 LIMIT %(most)s::int
