-- published_spenders: the queues that the broker delivers and whose calls spend a key, or may choose it for a group:
-- the first of them. Reads no lane of a key that neither exists nor is a member of a group.
WITH spent AS MATERIALIZED (
    SELECT key.id FROM dispatcher_ratelimitkey AS key WHERE key.name = %(key)s::text
     UNION
    SELECT joined.id FROM ({{groups_named(%(key)s::text)}}) AS joined WHERE right(%(key)s::text, 1) <> '*'
)
SELECT lane.queue
  FROM dispatcher_lane AS lane
 WHERE (SELECT count(spent.id) FROM spent) > 0
   AND (lane.key_ids && ARRAY(SELECT spent.id FROM spent) OR 'queue:' || lane.queue = %(key)s::text)
   AND {{queue_delivery(lane.queue)}} = 'broker'
 ORDER BY lane.queue, lane.id
 LIMIT 1
