-- stop_worker: this worker takes no more messages; its queues count as served for the grace, should no other serve
-- them. One whose row another transaction has locked falls silent.
UPDATE dispatcher_worker AS worker
   SET stopped_at = clock.now, seen_at = clock.now,
       serves_until = LEAST(worker.serves_until, clock.now + %(grace)s::interval)
  FROM (SELECT {{now}} AS now) AS clock
 WHERE worker.id = (SELECT mine.id FROM dispatcher_worker AS mine
                     WHERE mine.id = %(worker)s::uuid AND mine.stopped_at IS NULL FOR NO KEY UPDATE SKIP LOCKED)
