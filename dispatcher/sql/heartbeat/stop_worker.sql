-- stop_worker: this worker takes no more messages; its queues count as served for the grace, should no other serve
-- them.
UPDATE dispatcher_worker AS worker
   SET stopped_at = clock.now, seen_at = clock.now,
       serves_until = LEAST(worker.serves_until, clock.now + %(grace)s::interval)
  FROM (SELECT {{now}} AS now) AS clock
 WHERE worker.id = %(worker)s::uuid AND worker.stopped_at IS NULL
