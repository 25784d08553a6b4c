-- queue_has_worker(queue, moment): whether a live worker of Celery's serves a queue.
EXISTS (SELECT
          FROM dispatcher_worker AS worker
         WHERE {{queue}} = ANY (worker.queues) AND worker.serves_until > {{moment}})
