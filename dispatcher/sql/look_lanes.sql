-- look_lanes: these lanes in the order in which they are served, each with the calls at its head, locked.
-- The caller holds the locks of the lanes. A call that somebody else has locked (to cancel it, say) is left out.
-- Relies on the indexes call_waiting, lane_awake, lane_held and lane_parked.
WITH clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
), higher AS MATERIALIZED (
    -- On its own, and not joined: few lanes are awake, however many of the queue there are.
    SELECT other.queue, max(other.priority) AS priority
      FROM (SELECT lane.queue, lane.priority
              FROM dispatcher_lane AS lane
             WHERE lane.is_awake AND lane.id <> ALL (%(lanes)s::bigint[])
             UNION ALL
            SELECT held.queue, held.priority
              FROM (SELECT DISTINCT lane.queue FROM dispatcher_lane AS lane WHERE lane.id = ANY (%(lanes)s::bigint[])) AS mine
             CROSS JOIN LATERAL (
                   SELECT lane.queue, lane.priority
                     FROM dispatcher_lane AS lane
                    WHERE lane.is_held AND lane.queue = mine.queue AND lane.id <> ALL (%(lanes)s::bigint[])
                    ORDER BY lane.priority DESC, lane.served_at, lane.id
                    LIMIT 1) AS held) AS other
     GROUP BY other.queue
), behind AS MATERIALIZED (
    -- Key by key: one look into the index, however many lanes are parked.
    SELECT DISTINCT lane.id
      FROM dispatcher_lane AS lane
     CROSS JOIN LATERAL (
           SELECT unnest(lane.key_ids)
            UNION ALL
           SELECT key.id
             FROM dispatcher_ratelimitkey AS key
            WHERE key.name = 'queue:' || lane.queue) AS spent (key_id)
     WHERE lane.id = ANY (%(lanes)s::bigint[])
       AND (SELECT ahead.id
              FROM dispatcher_lane AS ahead
             WHERE ahead.parked_on_id = spent.key_id AND ahead.priority > lane.priority AND ahead.queue = lane.queue
               AND ahead.id <> ALL (%(lanes)s::bigint[])
             LIMIT 1) IS NOT NULL
)
SELECT clock.now, lane.id AS lane_id, lane.queue, lane.priority, lane.on_limit, lane.key_ids, lane.parked_on_id AS parked_on,
       COALESCE(higher.priority > lane.priority, false) AS is_outranked,
       behind.id IS NOT NULL AS is_behind,
       head.id AS call_id, head.costs
  FROM clock
 CROSS JOIN dispatcher_lane AS lane
  LEFT JOIN higher ON higher.queue = lane.queue
  LEFT JOIN behind ON behind.id = lane.id
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
