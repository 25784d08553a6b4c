-- unplaced_calls: the calls that have no lane yet, after a position in the order of sending: what a sender leaves that
-- dies between its commit and its hook, or that another transaction stopped. `last`: where the next look goes on; at
-- the end before all positions. Relies on the index call_unplaced.
SELECT COALESCE(array_agg(found.id ORDER BY found.position, found.id), '{}') AS calls,
       CASE WHEN count(*) = %(most)s::int THEN max(found.position) ELSE (-9223372036854775808)::bigint END AS last
  FROM (SELECT call.id, call.position
          FROM dispatcher_callqueue AS call
         WHERE {{is_unplaced(call)}} AND call.position > %(after)s::bigint
         ORDER BY call.position, call.id
         LIMIT %(most)s::int) AS found
