-- keys_per_worker: the keys with a limit per worker that calls of a queue spend, and its own, if that has one: the first
-- of them.
SELECT key.name
  FROM dispatcher_ratelimitkey AS key
 WHERE COALESCE(key.per_worker, key.override_per_worker) IS NOT NULL
   AND (key.name = 'queue:' || %(queue)s::text
        OR EXISTS (SELECT
                     FROM dispatcher_lane AS lane
                    WHERE lane.queue = %(queue)s::text AND {{lane_spends(lane, key)}}))
 ORDER BY key.name, key.id
 LIMIT 1
