-- keys_per_worker: a key with a limit per worker that calls of a queue spend or may choose for a group, or its own.
WITH spent AS MATERIALIZED (
    SELECT unnest(lane.key_ids) AS key_id FROM dispatcher_lane AS lane WHERE lane.queue = %(queue)s::text
)
SELECT key.name
  FROM dispatcher_ratelimitkey AS key
 WHERE COALESCE(key.per_worker, key.override_per_worker) IS NOT NULL
   AND (key.name = 'queue:' || %(queue)s::text
        OR key.id IN (SELECT spent.key_id FROM spent)
        OR EXISTS (SELECT
                     FROM ({{groups_named(key.name)}}) AS joined
                    WHERE NOT key.is_group AND joined.id IN (SELECT spent.key_id FROM spent)))
 ORDER BY key.name, key.id
 LIMIT 1
