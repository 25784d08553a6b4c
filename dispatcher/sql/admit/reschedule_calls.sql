-- reschedule_calls: put off the calls that asked for it to when their limit is expected to allow them.
-- The caller holds their locks.
UPDATE dispatcher_callqueue AS call
   SET state = 'scheduled', scheduled_at = later.at
  FROM unnest(%(calls)s::uuid[], %(at)s::timestamptz[]) AS later (id, at)
 WHERE call.id = later.id AND call.state = %(waiting)s::text
