-- look_lanes: these lanes in the order in which they are served, each with the calls at its head, locked.
-- The caller holds the locks of the lanes. A call that somebody else has locked (to cancel it, say) is left out.
-- Relies on the indexes call_waiting and lane_awake.
WITH clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
)
SELECT clock.now, lane.id AS lane_id, lane.queue, lane.priority, lane.on_limit, lane.key_ids,
       EXISTS (SELECT
                 FROM dispatcher_lane AS higher
                WHERE higher.is_awake AND higher.queue = lane.queue AND higher.priority > lane.priority
                  AND higher.id <> ALL (%(lanes)s::bigint[])) AS is_outranked,
       head.id AS call_id, head.costs
  FROM clock
 CROSS JOIN dispatcher_lane AS lane
  LEFT JOIN LATERAL (
       SELECT call.id, call.position, call.costs
         FROM dispatcher_callqueue AS call
        WHERE call.lane_id = lane.id AND call.state = 'available'
          AND (call.expires_at IS NULL OR call.expires_at > clock.now)
        ORDER BY call.position
        LIMIT %(heads)s::int
          FOR NO KEY UPDATE SKIP LOCKED) AS head ON true
 WHERE lane.id = ANY (%(lanes)s::bigint[])
 ORDER BY lane.priority DESC, lane.served_at, lane.id, head.position
