-- wake_returned: let the calls wait in their lanes that were put off since they came back without a start, and whose
-- task a live worker of their queue knows. Only of these queues and tasks. Relies on the index call_returned.
WITH {{clock}}, known AS MATERIALIZED (
    SELECT DISTINCT queue.name AS queue, task.name AS task
      FROM clock
     CROSS JOIN dispatcher_worker AS worker
     CROSS JOIN LATERAL unnest(worker.queues) AS queue (name)
     CROSS JOIN LATERAL unnest(worker.tasks) AS task (name)
     WHERE worker.serves_until > clock.now
       AND queue.name = ANY (%(queues)s::text[]) AND task.name = ANY (%(tasks)s::text[])
), again AS MATERIALIZED (
    SELECT call.id
      FROM dispatcher_callqueue AS call
      JOIN known ON known.queue = call.queue AND known.task = call.task
     WHERE call.returns > 0 AND call.finished_at IS NULL AND call.state = 'scheduled'
       AND call.queue = ANY (%(queues)s::text[])
     ORDER BY call.id
     LIMIT %(most)s::int
       FOR NO KEY UPDATE OF call SKIP LOCKED
), woken AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'available'
     -- An array: joined, the planner may read the whole table to find these.
     WHERE call.id = ANY (ARRAY(SELECT again.id FROM again)) AND call.state = 'scheduled'
    RETURNING call.lane_id, call.position
), {{lanes_noted(woken, false)}}
SELECT count(*) FROM woken
