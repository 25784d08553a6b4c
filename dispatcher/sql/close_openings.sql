-- close_openings: forget the opening times of keys that no lane is parked on any more. The caller holds their locks.
UPDATE dispatcher_ratelimitkey AS key
   SET opens_at = NULL
 WHERE key.id = ANY (%(keys)s::bigint[]) AND key.opens_at IS NOT NULL
   AND NOT EXISTS (SELECT FROM dispatcher_lane AS lane WHERE lane.parked_on_id = key.id)
