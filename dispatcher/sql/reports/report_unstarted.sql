-- report_unstarted: the tasks whose calls wait since they came back without a start, queue by queue, with how many
-- calls wait, up to a bound, and whether a live worker of the queue knows the task. Relies on the index call_returned.
WITH {{clock}}, waiting AS MATERIALIZED (
    SELECT call.queue, call.task, call.returns, call.scheduled_at
      FROM dispatcher_callqueue AS call
     WHERE call.returns > 0 AND call.finished_at IS NULL AND call.state IN ('available', 'scheduled')
     ORDER BY call.queue, call.task
     LIMIT %(most)s::int
)
SELECT waiting.queue, waiting.task, count(*) AS waiting_count, max(waiting.returns) AS returns,
       {{task_has_worker(waiting.queue, waiting.task, clock.now)}} AS is_known
  FROM clock
 CROSS JOIN waiting
 GROUP BY waiting.queue, waiting.task, clock.now
 ORDER BY waiting.queue, waiting.task
