-- mixed_kinds: of these queues and keys, those with a limit per worker where the broker delivers the queue: stored, or
-- of `made`. Relies on the unique index of key names.
SELECT kind.queue, kind.key, stored.name IS NOT NULL AS is_stored
  FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS kind (queue, key)
  LEFT JOIN dispatcher_queue AS stored ON stored.name = kind.queue
 WHERE {{queue_delivery(kind.queue)}} = 'broker'
   AND (kind.key = ANY (%(made)s::text[])
        OR (SELECT COALESCE(key.per_worker, key.override_per_worker)
              FROM dispatcher_ratelimitkey AS key
             WHERE key.name = kind.key) IS NOT NULL)
 ORDER BY kind.queue, kind.key
