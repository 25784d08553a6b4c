-- unplaced_calls: the calls that have no lane yet, after a position in the order of sending: what a sender leaves that
-- dies between its commit and its hook, or that another transaction stopped. Relies on the index call_unplaced.
SELECT call.id, call.position
  FROM dispatcher_callqueue AS call
 WHERE {{is_unplaced(call)}} AND call.position > %(after)s::bigint
 ORDER BY call.position, call.id
 LIMIT %(most)s::int
