-- lock_calls: lock those of these calls that have not started, in order of id.
-- A later statement then sees what the previous holder of the locks wrote: the slots of a trip, for example.
SELECT call.id
  FROM dispatcher_callqueue AS call
 WHERE call.id = ANY (%(calls)s::uuid[])
   AND call.state IN ('scheduled', 'pending', 'available', 'dispatched', 'retryable')
 ORDER BY call.id
   FOR NO KEY UPDATE
