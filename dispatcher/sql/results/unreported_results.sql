-- unreported_results: calls that ended without a word of Celery's: cancelled, expired, dropped, poison or lost, in the
-- order in which they ended, after a place in that order and before a time. Relies on the index call_ended.
SELECT {{message_columns(ended)}}, ended.state, ended.reason, ended.error, ended.finished_at
  FROM unnest(ARRAY['cancelled', 'discarded']) AS known (state)
 CROSS JOIN LATERAL (
       SELECT {{message_columns(call)}}, call.state, call.reason, call.error, call.finished_at
         FROM dispatcher_callqueue AS call
        WHERE call.state = known.state
          AND call.finished_at >= %(after)s::timestamptz AND call.finished_at < %(until)s::timestamptz
          AND (call.finished_at, call.id) > (%(after)s::timestamptz, %(after_id)s::uuid)
          AND (call.state = 'cancelled' OR call.reason <> 'failed'
               OR call.error ->> 'type' IN
                  ('WorkerLost', 'WorkerLostError', 'TimeLimitExceeded', 'Terminated', 'SystemExit'))
        ORDER BY call.finished_at, call.id
        LIMIT %(most)s::int) AS ended
 ORDER BY ended.finished_at, ended.id
 LIMIT %(most)s::int
