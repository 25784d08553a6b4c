-- queues_ready(hop): a recursive CTE over the queues that have lanes which are ready. Hops on the index lanesite_place,
-- so the number of these lanes costs nothing.
{{hop}} AS (
    (SELECT site.queue
       FROM dispatcher_lanesite AS site
      WHERE site.place = 0
      ORDER BY site.queue
      LIMIT 1)
     UNION ALL
    SELECT next.queue
      FROM {{hop}}
     CROSS JOIN LATERAL (
           SELECT site.queue
             FROM dispatcher_lanesite AS site
            WHERE site.place = 0 AND site.queue > {{hop}}.queue
            ORDER BY site.queue
            LIMIT 1) AS next
)
