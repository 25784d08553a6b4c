-- sweep_lanes: of the next lanes with waiting calls after this one, those that no pass would serve: the safety net.
-- Hops from lane to lane on the index call_waiting, so neither the backlog nor lanes without calls cost anything.
WITH RECURSIVE hop AS (
    (SELECT call.lane_id, 1 AS number
       FROM dispatcher_callqueue AS call
      WHERE call.state = 'available' AND call.oversized_key_id IS NULL AND call.lane_id > %(after)s::bigint
      ORDER BY call.lane_id
      LIMIT 1)
     UNION ALL
    SELECT next.lane_id, hop.number + 1
      FROM hop
     CROSS JOIN LATERAL (
           SELECT call.lane_id
             FROM dispatcher_callqueue AS call
            WHERE call.state = 'available' AND call.oversized_key_id IS NULL AND call.lane_id > hop.lane_id
            ORDER BY call.lane_id
            LIMIT 1) AS next
     WHERE hop.number < %(most)s::int
)
SELECT ARRAY(SELECT lane.id
               FROM hop
               JOIN dispatcher_lane AS lane ON lane.id = hop.lane_id
              WHERE NOT lane.is_awake AND lane.parked_on_id IS NULL AND NOT lane.is_held
                -- An expired call is discarded, and not served.
                AND (SELECT call.id
                       FROM dispatcher_callqueue AS call
                      WHERE {{waits_in(call, lane.id)}}
                        AND {{not_expired(call, clock_timestamp())}}
                      ORDER BY call.position
                      LIMIT 1) IS NOT NULL) AS stranded,
       CASE WHEN count(*) = %(most)s::int THEN max(lane_id) ELSE 0 END AS last
  FROM hop
