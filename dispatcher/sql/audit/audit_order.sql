-- audit_order: calls at the head of their lanes that wait although a call sent after them is in flight.
-- That alone proves nothing: one that was put back waits at the head, too. But if the row is the same at a later look,
-- and a call behind it was taken since the first (`passed_after`), then it was passed. A transaction that keeps the
-- row locked for long is the only innocent cause. Relies on the indexes call_in_flight and call_waiting.
WITH {{clock}}, flown AS MATERIALIZED (
    SELECT DISTINCT ON (call.lane_id) call.lane_id, call.id, call.position, call.dispatched_at
      FROM dispatcher_callqueue AS call
     WHERE call.state IN ('dispatched', 'active')
       AND (%(passed_after)s::timestamptz IS NULL OR call.dispatched_at > %(passed_after)s::timestamptz)
     ORDER BY call.lane_id, call.position DESC
)
SELECT 'call ' || head.id AS what, head.id::text AS target, head.version,
       json_build_object('lane', flown.lane_id, 'sent_at', head.created_at, 'passed_by', flown.id,
                         'passed_at', flown.dispatched_at) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN flown
 CROSS JOIN LATERAL {{first_call_in(flown.lane_id)}} AS head
 WHERE head.position < flown.position AND {{not_expired(head, clock.now)}}
 ORDER BY head.id
 LIMIT %(most)s::int
