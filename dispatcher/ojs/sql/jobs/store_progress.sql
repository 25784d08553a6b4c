-- store_progress: store the progress of a running call; it never decreases within an attempt.
-- No row back means that the call does not run, or that the given ticket, attempt or worker does not hold it.
UPDATE dispatcher_callqueue AS call
   SET progress = jsonb_build_object(
           'progress', GREATEST(%(progress)s::float8,
                                CASE WHEN (call.progress ->> 'attempt')::int = call.attempt
                                     THEN (call.progress ->> 'progress')::float8 END),
           'message', COALESCE(%(message)s::text, call.progress ->> 'message'),
           'data', COALESCE(%(content)s::jsonb, call.progress -> 'data'),
           'attempt', call.attempt, 'updated_at', clock_timestamp())
 WHERE call.id = %(call)s::uuid AND call.state = 'active'
   AND (%(ticket)s::uuid IS NULL OR call.ticket = %(ticket)s::uuid)
   AND (%(attempt)s::int IS NULL OR call.attempt = %(attempt)s::int)
   AND (%(worker)s::uuid IS NULL
        OR EXISTS (SELECT
                     FROM dispatcher_slot AS slot
                    WHERE slot.call_id = call.id AND slot.pulled_until IS NOT NULL
                      AND (slot.worker_id IS NULL OR slot.worker_id = %(worker)s::uuid)))
RETURNING call.progress
