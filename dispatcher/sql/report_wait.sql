-- report_wait: which key or queue stopped the lane that a waiting call is in, since when it waits and how many go before it.
-- No row back means the call does not wait. Relies on call_waiting.
SELECT key.name AS stopped_by, GREATEST(call.created_at, call.scheduled_at) AS since, lane.is_awake,
       CASE WHEN lane.is_held THEN lane.queue END AS held_by,
       EXISTS (SELECT
                 FROM dispatcher_worker AS worker
                WHERE lane.queue = ANY (worker.queues)
                  AND worker.serves_until > COALESCE(%(now)s::timestamptz, clock_timestamp())) AS is_served,
       (SELECT count(*)
          FROM (SELECT
                  FROM dispatcher_callqueue AS earlier
                 WHERE earlier.lane_id = call.lane_id AND earlier.state = 'available' AND earlier.position < call.position
                 LIMIT %(most)s::int) AS ahead) AS ahead,
       COALESCE(%(now)s::timestamptz, clock_timestamp()) AS at
  FROM dispatcher_callqueue AS call
  JOIN dispatcher_lane AS lane ON lane.id = call.lane_id
  LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = lane.parked_on_id
 WHERE call.id = %(call)s::uuid AND call.state = 'available'
