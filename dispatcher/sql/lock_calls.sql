-- lock_calls: lock those of these calls that have not started, in order of id.
-- For what must see, in a later statement, what whoever held them has written: the slots of an admission, say.
SELECT call.id
  FROM dispatcher_callqueue AS call
 WHERE call.id = ANY (%(calls)s::uuid[])
   AND call.state IN ('scheduled', 'pending', 'available', 'dispatched', 'retryable')
 ORDER BY call.id
   FOR NO KEY UPDATE
