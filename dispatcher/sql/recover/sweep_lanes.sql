-- sweep_lanes: of the next lanes after this one, those with waiting calls that no pass would serve: the safety net.
-- The slice begins with the next lane that has calls, and lanes are read in order of id: one that is awake, parked or
-- held costs next to nothing, one that sleeps a look at the index call_waiting.
WITH slice AS MATERIALIZED (
    SELECT lane.id, NOT lane.is_awake AND lane.parked_on_id IS NULL AND NOT lane.is_held AS is_asleep
      FROM dispatcher_lane AS lane
     WHERE lane.id >= (SELECT call.lane_id
                         FROM dispatcher_callqueue AS call
                        WHERE call.state = 'available' AND call.oversized_key_id IS NULL
                          AND call.lane_id > %(after)s::bigint
                        ORDER BY call.lane_id
                        LIMIT 1)
     ORDER BY lane.id
     LIMIT %(most)s::int
)
SELECT ARRAY(SELECT slice.id
               FROM slice
              WHERE slice.is_asleep
                -- An expired call is discarded, and not served.
                AND (SELECT call.id
                       FROM dispatcher_callqueue AS call
                      WHERE {{waits_in(call, slice.id)}}
                        AND {{not_expired(call, clock_timestamp())}}
                      ORDER BY call.position
                      LIMIT 1) IS NOT NULL) AS stranded,
       CASE WHEN count(*) = %(most)s::int THEN max(id) ELSE 0 END AS last
  FROM slice
