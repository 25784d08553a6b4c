-- open_queue: a queue is named for the first time, over HTTP or by a worker of Celery's: workers may fetch its calls,
-- unless Celery has something to do with it, because a worker of Celery's serves it, or calls were sent to it from
-- Python. Until a worker does, it is undecided: a worker of Celery's that comes first serves it (see
-- record_heartbeat). `delivery`: what it has in the settings, else.
INSERT INTO dispatcher_queue (name, delivery, is_undecided, on_full, warn_at)
SELECT opened.name, CASE WHEN opened.is_free THEN 'http' ELSE %(delivery)s::text END, opened.is_free, 'reject', 0.8
  FROM (SELECT %(name)s::text AS name,
               NOT (EXISTS (SELECT FROM dispatcher_worker AS worker WHERE %(name)s::text = ANY (worker.queues))
                    OR (SELECT lane.id
                          FROM dispatcher_lane AS lane
                         WHERE lane.queue = %(name)s::text
                         ORDER BY lane.priority, lane.on_limit, lane.key_ids
                         LIMIT 1) IS NOT NULL) AS is_free) AS opened
    ON CONFLICT (name) DO NOTHING
