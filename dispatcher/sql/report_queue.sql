-- report_queue: how many calls of a queue stand where, and how the last minute and hour went.
-- It reads through what is scheduled and what has ended. Relies on call_waiting, call_in_flight, call_due and call_ended.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), ended AS MATERIALIZED (
    SELECT call.state, count(*) AS calls,
           count(*) FILTER (WHERE call.finished_at > clock.now - interval '1 hour') AS last_hour,
           count(*) FILTER (WHERE call.finished_at > clock.now - interval '1 minute') AS last_minute,
           avg(call.finished_at - call.started_at) FILTER (WHERE call.finished_at > clock.now - interval '1 hour') AS duration,
           avg(call.started_at - call.created_at) FILTER (WHERE call.finished_at > clock.now - interval '1 hour') AS wait
      FROM clock
     CROSS JOIN dispatcher_callqueue AS call
     WHERE call.queue = %(queue)s::text AND call.finished_at IS NOT NULL
     GROUP BY call.state
)
SELECT (SELECT count(*)
          FROM dispatcher_lane AS lane
          JOIN dispatcher_callqueue AS call ON call.lane_id = lane.id AND call.state = 'available'
         WHERE lane.queue = %(queue)s::text) AS available,
       (SELECT count(*) FROM dispatcher_callqueue AS call WHERE call.queue = %(queue)s::text AND call.state IN ('dispatched', 'active')) AS active,
       (SELECT count(*) FROM dispatcher_callqueue AS call
         WHERE call.queue = %(queue)s::text AND call.state IN ('scheduled', 'retryable') AND call.state = 'scheduled') AS scheduled,
       (SELECT count(*) FROM dispatcher_callqueue AS call
         WHERE call.queue = %(queue)s::text AND call.state IN ('scheduled', 'retryable') AND call.state = 'retryable') AS retryable,
       COALESCE((SELECT calls FROM ended WHERE state = 'completed'), 0) AS completed,
       COALESCE((SELECT calls FROM ended WHERE state = 'discarded'), 0) AS discarded,
       COALESCE((SELECT calls FROM ended WHERE state = 'cancelled'), 0) AS cancelled,
       COALESCE((SELECT last_hour FROM ended WHERE state = 'completed'), 0) AS completed_last_hour,
       COALESCE((SELECT last_hour FROM ended WHERE state = 'discarded'), 0) AS failed_last_hour,
       COALESCE((SELECT last_minute FROM ended WHERE state = 'completed'), 0) AS completed_last_minute,
       COALESCE((SELECT last_minute FROM ended WHERE state = 'discarded'), 0) AS failed_last_minute,
       (SELECT EXTRACT(EPOCH FROM duration)::float8 * 1000 FROM ended WHERE state = 'completed') AS duration_ms,
       (SELECT EXTRACT(EPOCH FROM wait)::float8 * 1000 FROM ended WHERE state = 'completed') AS wait_ms
