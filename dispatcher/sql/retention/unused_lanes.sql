-- unused_lanes: those of these lanes of which nothing has started for this long, and that have no call in any state.
-- The caller runs it again under the locks of the rows, because the snapshot of this run may be older than them.
-- What is in flight is read whole, by queue, and only if there is a lane without other calls.
-- Relies on the indexes lanesite_lane, call_waiting, call_aside, call_of_lane and call_in_flight. The order pins the
-- third: the planner may take a lane that it knows nothing of for one that has most calls.
WITH empty AS MATERIALIZED (
    SELECT lane.id, lane.queue
      FROM dispatcher_lane AS lane
      JOIN dispatcher_lanesite AS site ON site.lane_id = lane.id
     WHERE lane.id = ANY (%(ids)s::bigint[])
       AND site.served_at < (SELECT {{now}} - %(unused)s::interval)
       AND (SELECT first.id FROM {{first_call_in(lane.id)}} AS first) IS NULL
       AND (SELECT call.id
              FROM dispatcher_callqueue AS call
             WHERE {{waits_alone_in(call, lane.id)}}
             ORDER BY call.position
             LIMIT 1) IS NULL
       AND (SELECT call.lane_id
              FROM dispatcher_callqueue AS call
             WHERE call.lane_id >= lane.id
               AND call.state IN ('pending', 'scheduled', 'retryable', 'completed', 'cancelled', 'discarded')
             ORDER BY call.lane_id
             LIMIT 1) IS DISTINCT FROM lane.id
)
SELECT empty.id
  FROM empty
EXCEPT
SELECT call.lane_id
  FROM dispatcher_callqueue AS call
 WHERE call.queue = ANY (ARRAY(SELECT empty.queue FROM empty)) AND call.state IN ('dispatched', 'active')
