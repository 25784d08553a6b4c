-- look_lanes: these lanes in the order in which they are served, each with the calls at its head, locked.
-- The caller holds the locks of the lanes. A call that somebody else has locked (to cancel it, say) is left out.
-- Relies on the indexes call_waiting and lane_awake.
WITH clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
), higher AS MATERIALIZED (
    -- On its own, and not joined: few lanes are awake, however many of the queue there are.
    SELECT lane.queue, max(lane.priority) AS priority
      FROM dispatcher_lane AS lane
     WHERE lane.is_awake AND lane.id <> ALL (%(lanes)s::bigint[])
     GROUP BY lane.queue
)
SELECT clock.now, lane.id AS lane_id, lane.queue, lane.priority, lane.on_limit, lane.key_ids,
       COALESCE(higher.priority > lane.priority, false) AS is_outranked,
       head.id AS call_id, head.costs
  FROM clock
 CROSS JOIN dispatcher_lane AS lane
  LEFT JOIN higher ON higher.queue = lane.queue
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
