-- unparked_lanes: which of these lanes neither a key nor their queue holds up, seen after the commit of what was sent to them.
-- One that is parked or held needs no pass now: who lets it go on looks again after its own commit, and sees the call then.
SELECT id
  FROM dispatcher_lane
 WHERE id = ANY (%(lanes)s::bigint[]) AND parked_on_id IS NULL AND NOT is_held
 ORDER BY id
