-- open_queue: a queue is named over HTTP for the first time: workers will fetch its calls, unless Celery has something to do
-- with it, because a worker of Celery's serves it, or calls were sent to it from Python.
INSERT INTO dispatcher_queue (name, is_pulled, on_full, warn_at)
SELECT %(name)s::text, NOT (EXISTS (SELECT FROM dispatcher_worker AS worker WHERE %(name)s::text = ANY (worker.queues))
                            OR (SELECT lane.id
                                  FROM dispatcher_lane AS lane
                                 WHERE lane.queue = %(name)s::text
                                 ORDER BY lane.priority, lane.on_limit, lane.key_ids
                                 LIMIT 1) IS NOT NULL),
       'reject', 0.8
    ON CONFLICT (name) DO NOTHING
