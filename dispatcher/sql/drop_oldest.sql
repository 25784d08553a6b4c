-- drop_oldest: discard the calls that have waited longest in a queue, so that others have room in it.
-- What a pass has locked is on its way out, and is left alone. Relies on the unique index of lane kinds, and on call_waiting.
WITH oldest AS MATERIALIZED (
    SELECT call.id
      FROM (SELECT call.id, call.position
              FROM dispatcher_lane AS lane
             CROSS JOIN LATERAL (
                   SELECT call.id, call.position
                     FROM dispatcher_callqueue AS call
                    WHERE call.lane_id = lane.id AND call.state = 'available'
                    ORDER BY call.position
                    LIMIT %(most)s::int) AS call
             WHERE lane.queue = %(queue)s::text
             ORDER BY call.position
             LIMIT %(most)s::int) AS first
      JOIN dispatcher_callqueue AS call ON call.id = first.id AND call.state = 'available'
       FOR NO KEY UPDATE OF call SKIP LOCKED
)
UPDATE dispatcher_callqueue AS call
   SET state = 'discarded', reason = 'crowded', finished_at = clock_timestamp()
  FROM oldest
 WHERE call.id = oldest.id AND call.state = 'available'
