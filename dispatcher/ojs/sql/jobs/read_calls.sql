-- read_calls: these calls, with what the HTTP API shows of them; read_jobs has the rest.
SELECT call.id, call.lane_id, call.task, call.args, call.meta, call.queue, call.priority, call.state, call.retry,
       call.scheduled_at, call.expires_at, call.chosen_keys, call.attempt, call.ticket, call.claim, call.created_at,
       call.started_at, call.finished_at, call.reason, call.result, call.error, call.errors
  FROM dispatcher_callqueue AS call
 WHERE call.id = ANY (%(calls)s::uuid[])
