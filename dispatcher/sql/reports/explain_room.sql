-- explain_room: how the server counts what these keys allow, with the time and the buffers of each step. The function
-- room is read by every trip, claim and report.
EXPLAIN (ANALYZE, BUFFERS)
SELECT allowed.id, allowed.room, allowed.own, allowed.fits, allowed.next_at
  FROM {{@room}}(%(keys)s::bigint[], NULL, %(now)s::timestamptz, %(margin)s::interval, %(ramp)s::interval) AS allowed
