-- unreported_results: calls that ended without a word of Celery's: cancelled, expired, dropped, poison or lost, in the
-- order in which they ended, after a place in that order and before a time. Relies on the index call_ended.
SELECT ended.id, ended.task, ended.state, ended.reason, ended.message, ended.finished_at
  FROM unnest(ARRAY['cancelled', 'discarded']) AS known (state)
 CROSS JOIN LATERAL (
       SELECT call.id, call.task, call.state, call.reason, call.error ->> 'message' AS message, call.finished_at
         FROM dispatcher_callqueue AS call
        WHERE call.state = known.state
          AND call.finished_at >= %(after)s::timestamptz AND call.finished_at < %(until)s::timestamptz
          AND (call.finished_at, call.id) > (%(after)s::timestamptz, %(after_id)s::uuid)
          AND (call.state = 'cancelled' OR call.reason <> 'failed' OR call.error ->> 'type' = 'WorkerLost')
        ORDER BY call.finished_at, call.id
        LIMIT %(most)s::int) AS ended
 ORDER BY ended.finished_at, ended.id
 LIMIT %(most)s::int
