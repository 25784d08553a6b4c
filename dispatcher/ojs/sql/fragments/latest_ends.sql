-- latest_ends(queue, state): how many calls of a queue ended so in the last hour and minute, and how long they ran and
-- waited: from the latest `recent`; if more ended, estimated from the time in which these did.
SELECT CASE WHEN count(*) < %(recent)s::int THEN count(*)
            ELSE round(count(*) * 3600
                       / GREATEST(EXTRACT(EPOCH FROM clock.now - min(latest.finished_at)), 0.001))::bigint
            END AS last_hour,
       CASE WHEN count(*) < %(recent)s::int OR min(latest.finished_at) < clock.now - interval '1 minute'
            THEN count(*) FILTER (WHERE latest.finished_at > clock.now - interval '1 minute')
            ELSE round(count(*) * 60
                       / GREATEST(EXTRACT(EPOCH FROM clock.now - min(latest.finished_at)), 0.001))::bigint
            END AS last_minute,
       EXTRACT(EPOCH FROM avg(latest.finished_at - latest.started_at))::float8 * 1000 AS duration_ms,
       EXTRACT(EPOCH FROM avg(latest.started_at - latest.created_at))::float8 * 1000 AS wait_ms
  FROM (SELECT call.finished_at, call.started_at, call.created_at
          FROM dispatcher_callqueue AS call
         WHERE call.queue = {{queue}} AND call.state = {{state}}
           AND call.finished_at > clock.now - interval '1 hour'
         ORDER BY call.finished_at DESC
         LIMIT %(recent)s::int) AS latest
