-- store_progress: store the progress of a running call beside it. Within an attempt it never decreases, and what is not
-- given stays; each attempt begins without any.
-- No row back means that the call does not run, or that the given ticket, attempt or worker does not hold it. The call
-- is locked first, as by every step.
WITH held AS MATERIALIZED (
    SELECT call.id, call.attempt, call.created_at
      FROM dispatcher_callqueue AS call
     WHERE call.id = %(call)s::uuid AND call.state = 'active'
       AND (%(ticket)s::uuid IS NULL OR call.ticket = %(ticket)s::uuid)
       AND (%(attempt)s::int IS NULL OR call.attempt = %(attempt)s::int)
       AND (%(worker)s::uuid IS NULL
            OR EXISTS (SELECT
                         FROM dispatcher_slot AS slot
                        WHERE slot.call_id = call.id AND slot.pulled_until IS NOT NULL
                          AND (slot.worker_id IS NULL OR slot.worker_id = %(worker)s::uuid)))
       FOR NO KEY UPDATE OF call
)
INSERT INTO dispatcher_ojs_job AS job (call_id, created_at, progress)
SELECT held.id, held.created_at,
       jsonb_build_object('progress', %(progress)s::float8, 'message', %(message)s::text, 'data', %(content)s::jsonb,
                          'attempt', held.attempt, 'updated_at', clock_timestamp())
  FROM held
    ON CONFLICT (call_id) DO UPDATE
   SET progress = excluded.progress || CASE WHEN job.progress -> 'attempt' = excluded.progress -> 'attempt' THEN
           jsonb_build_object(
               'progress', GREATEST(%(progress)s::float8, (job.progress ->> 'progress')::float8),
               'message', COALESCE(%(message)s::text, job.progress ->> 'message'),
               'data', COALESCE(%(content)s::jsonb, job.progress -> 'data')) ELSE '{}' END
RETURNING job.progress
