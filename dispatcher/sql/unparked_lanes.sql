-- unparked_lanes: which of these lanes are not parked on a key, seen after the commit of what was sent to them.
-- One that is parked needs no pass now: who unparks it looks again after its own commit, and sees the call then.
SELECT id
  FROM dispatcher_lane
 WHERE id = ANY (%(lanes)s::bigint[]) AND parked_on_id IS NULL
 ORDER BY id
