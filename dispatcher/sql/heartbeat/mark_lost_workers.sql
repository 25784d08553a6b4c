-- mark_lost_workers: mark the workers that fell silent; one that speaks again is no longer lost.
UPDATE dispatcher_worker AS worker
   SET lost_at = clock.now
  FROM (SELECT {{now}} AS now) AS clock
 WHERE worker.lost_at IS NULL AND worker.stopped_at IS NULL AND worker.seen_at < clock.now - %(lease)s::interval
RETURNING worker.id, worker.name
