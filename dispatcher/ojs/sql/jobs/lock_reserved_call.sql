-- lock_reserved_call: wait for who has locked a call, so that its end is recorded in the same transaction.
SELECT call.id
  FROM dispatcher_callqueue AS call
 WHERE call.id = %(call)s::uuid
   FOR NO KEY UPDATE
