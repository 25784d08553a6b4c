-- published_spenders: the queues that the broker delivers and whose calls spend a key: the first of them.
SELECT lane.queue
  FROM dispatcher_lane AS lane
 WHERE (lane.key_ids && ARRAY(SELECT key.id FROM dispatcher_ratelimitkey AS key WHERE key.name = %(key)s::text)
        OR 'queue:' || lane.queue = %(key)s::text)
   AND {{queue_delivery(lane.queue)}} = 'broker'
 ORDER BY lane.queue, lane.id
 LIMIT 1
