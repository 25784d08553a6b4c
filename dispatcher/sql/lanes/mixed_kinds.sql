-- mixed_kinds: of these queues and keys, those with a limit per worker where the broker delivers the queue: stored, or
-- of `made`; for a group, one of its members. Relies on the unique index of key names.
SELECT kind.queue, limited.name AS key, stored.name IS NOT NULL AS is_stored
  FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS kind (queue, name)
  LEFT JOIN dispatcher_queue AS stored ON stored.name = kind.queue
 CROSS JOIN LATERAL (
       SELECT kind.name WHERE kind.name = ANY (%(made)s::text[])
        UNION ALL
       SELECT key.name
         FROM dispatcher_ratelimitkey AS key
        WHERE COALESCE(key.per_worker, key.override_per_worker) IS NOT NULL
          AND (key.name = kind.name
               OR key.id = ANY (ARRAY(SELECT member.id FROM ({{members_of(kind)}}) AS member
                                       WHERE right(kind.name, 1) = '*')))
        ORDER BY name
        LIMIT 1) AS limited
 WHERE {{queue_delivery(kind.queue)}} = 'broker'
 ORDER BY kind.queue, kind.name
