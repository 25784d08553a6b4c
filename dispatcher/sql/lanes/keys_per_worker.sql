-- keys_per_worker: a key with a limit per worker that calls of a queue spend, or its own.
SELECT key.name
  FROM dispatcher_ratelimitkey AS key
 WHERE COALESCE(key.per_worker, key.override_per_worker) IS NOT NULL
   AND (key.name = 'queue:' || %(queue)s::text
        OR key.id IN (SELECT unnest(lane.key_ids) FROM dispatcher_lane AS lane WHERE lane.queue = %(queue)s::text))
 ORDER BY key.name, key.id
 LIMIT 1
