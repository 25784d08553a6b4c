-- delete_lanes: delete lanes that have no calls; the caller has locked them, and looked under the locks.
DELETE FROM dispatcher_lane WHERE id = ANY (%(ids)s::bigint[])
