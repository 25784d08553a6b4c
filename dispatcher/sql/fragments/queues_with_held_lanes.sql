-- queues_with_held_lanes(hop): a recursive CTE over the queues that hold lanes. Hops on the index lane_held, so the
-- number of lanes that a queue holds costs nothing.
{{hop}} AS (
    (SELECT lane.queue
       FROM dispatcher_lane AS lane
      WHERE lane.is_held
      ORDER BY lane.queue
      LIMIT 1)
     UNION ALL
    SELECT next.queue
      FROM {{hop}}
     CROSS JOIN LATERAL (
           SELECT lane.queue
             FROM dispatcher_lane AS lane
            WHERE lane.is_held AND lane.queue > {{hop}}.queue
            ORDER BY lane.queue
            LIMIT 1) AS next
)
