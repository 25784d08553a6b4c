-- drop_calls: discard the calls that asked to be dropped at a limit. The caller holds their locks.
UPDATE dispatcher_callqueue AS call
   SET state = 'discarded', reason = 'limit', finished_at = {{now}},
       error = jsonb_build_object('type', 'LimitReached', 'message', 'dropped at the limit of ' || key.name,
                                  'attempt', call.attempt, 'key', key.name, 'occurred_at', {{now}})
  FROM unnest(%(calls)s::uuid[], %(keys)s::bigint[]) AS dropped (id, key_id)
  JOIN dispatcher_ratelimitkey AS key ON key.id = dropped.key_id
 WHERE call.id = dropped.id AND call.state = %(waiting)s::text
RETURNING call.id, key.name AS key
