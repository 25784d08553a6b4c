-- openable_keys: which of these keys a release may have opened for a lane that is parked on them, and whether any
-- lane is awake. A release opens a concurrency limit and nothing else. Relies on the indexes lane_parked and lane_awake.
SELECT ARRAY(SELECT key.id
               FROM dispatcher_ratelimitkey AS key
              WHERE key.id = ANY (%(keys)s::bigint[])
                AND (key.concurrency IS NOT NULL OR key.override_concurrency IS NOT NULL)
                AND (key.opens_at IS NULL OR key.opens_at <= COALESCE(%(now)s::timestamptz, clock_timestamp()))
                AND EXISTS (SELECT FROM dispatcher_lane AS lane WHERE lane.parked_on_id = key.id)) AS keys,
       EXISTS (SELECT FROM dispatcher_lane AS lane WHERE lane.is_awake) AS has_awake
