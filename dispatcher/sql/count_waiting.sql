-- count_waiting: how many calls wait in a queue, or will when their time comes, up to a bound.
-- Lane by lane: there is no index of waiting calls by queue. What is scheduled is read through, whatever its queue: an index for
-- it would offer itself where the first of all that is due is wanted. Relies on the unique index of lane kinds, on
-- call_waiting and call_due.
SELECT (SELECT count(*)
          FROM (SELECT
                  FROM dispatcher_lane AS lane
                 CROSS JOIN LATERAL (
                       SELECT
                         FROM dispatcher_callqueue AS call
                        WHERE call.lane_id = lane.id AND call.state = 'available'
                        LIMIT %(most)s::int) AS waiting
                 WHERE lane.queue = %(queue)s::text
                 LIMIT %(most)s::int) AS found)
       + (SELECT count(*)
            FROM (SELECT
                    FROM dispatcher_callqueue AS call
                   WHERE call.queue = %(queue)s::text AND call.state IN ('scheduled', 'retryable')
                   LIMIT %(most)s::int) AS due) AS calls
