-- queues_in_flight(hop): a recursive CTE over the queues that have calls in flight. Hops on the index call_in_flight.
{{hop}} AS (
    (SELECT call.queue
       FROM dispatcher_callqueue AS call
      WHERE call.state IN ('dispatched', 'active')
      ORDER BY call.queue
      LIMIT 1)
     UNION ALL
    SELECT next.queue
      FROM {{hop}}
     CROSS JOIN LATERAL (
           SELECT call.queue
             FROM dispatcher_callqueue AS call
            WHERE call.state IN ('dispatched', 'active') AND call.queue > {{hop}}.queue
            ORDER BY call.queue
            LIMIT 1) AS next
)
