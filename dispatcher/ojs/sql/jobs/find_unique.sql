-- find_unique: the latest call with this unique key, in one of these states and sent within the period, if there is
-- one.
-- State by state: of calls that ended long ago any number may have the same key; few are open. The caller holds the
-- key's lock (lock_unique). Each job looks up its own call. Relies on the index job_unique.
WITH since AS MATERIALIZED (
    SELECT COALESCE(clock_timestamp() - %(period)s::interval, '-infinity') AS at
)
SELECT latest.id, latest.queue, latest.state
  FROM unnest(%(states)s::text[]) AS wanted (state)
 CROSS JOIN LATERAL (
       SELECT call.id, call.queue, call.state, job.created_at
         FROM dispatcher_ojs_job AS job
        CROSS JOIN LATERAL (
              SELECT call.id, call.queue, call.state
                FROM dispatcher_callqueue AS call
               WHERE call.id = job.call_id AND call.state = wanted.state
               LIMIT 1) AS call
        WHERE job.unique_key = %(unique_key)s::text
          AND job.outcome = CASE WHEN wanted.state IN ('completed', 'cancelled', 'discarded') THEN wanted.state
                                 ELSE 'open' END
          AND job.created_at > (SELECT since.at FROM since)
        ORDER BY job.created_at DESC
        LIMIT 1) AS latest
 ORDER BY latest.created_at DESC, latest.id DESC
 LIMIT 1
