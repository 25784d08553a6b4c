-- audit_two_tickets: tickets that more than one call in flight has. Relies on the index call_in_flight.
SELECT 'ticket ' || call.ticket AS what, call.ticket::text AS target, '' AS version,
       json_build_object('calls', jsonb_agg(call.id ORDER BY call.id)) AS facts,
       count(*) OVER () AS total
  FROM dispatcher_callqueue AS call
 WHERE call.state IN ('dispatched', 'active')
 GROUP BY call.ticket
HAVING count(*) > 1
 ORDER BY call.ticket
 LIMIT %(most)s::int
