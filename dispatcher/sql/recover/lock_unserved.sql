-- lock_unserved: calls on the way to workers that are not there, locked: their slots are room that others could use.
-- Hops from queue to queue on the index call_in_flight, so those that are served cost one look each.
WITH RECURSIVE {{clock}},
{{hops(hop, dispatcher_callqueue, queue, (state = 'dispatched' OR state = 'active'), '', true)}},
unserved AS MATERIALIZED (
    SELECT hop.value AS queue
      FROM clock
     CROSS JOIN hop
     WHERE NOT {{queue_has_worker(hop.value, clock.now)}}
)
SELECT call.id AS call_id, call.ticket
  FROM dispatcher_callqueue AS call
 CROSS JOIN clock
 WHERE call.queue = ANY (ARRAY(SELECT unserved.queue FROM unserved)) AND call.state = 'dispatched'
   -- What was dispatched while one was there may be in its hands.
   AND call.dispatched_at < clock.now - %(grace)s::interval
 ORDER BY call.id
 LIMIT %(most)s::int
   FOR NO KEY UPDATE OF call SKIP LOCKED
