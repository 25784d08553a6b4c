-- task_has_worker(queue, task, moment): whether a live worker of a queue knows a task, or does not report which tasks
-- it knows.
EXISTS (SELECT
          FROM dispatcher_worker AS worker
         WHERE {{queue}} = ANY (worker.queues) AND worker.serves_until > {{moment}}
           AND (worker.tasks IS NULL OR {{task}} = ANY (worker.tasks)))
