-- write_jobs: store the options of calls that an earlier statement of this transaction wrote; nothing of the others.
-- Each looks up its own call. Relies on the primary key of calls.
INSERT INTO dispatcher_ojs_job (call_id, timeout, visibility, unique_key, envelope, created_at)
SELECT call.id, given.timeout, given.visibility, given.unique_key, given.envelope, call.created_at
  FROM unnest(%(calls)s::uuid[], %(timeout)s::interval[], %(visibility)s::interval[], %(unique_key)s::text[],
              %(envelope)s::jsonb[]) AS given (call, timeout, visibility, unique_key, envelope)
 CROSS JOIN LATERAL (
       SELECT call.id, call.created_at
         FROM dispatcher_callqueue AS call
        WHERE call.id = given.call
        LIMIT 1) AS call
