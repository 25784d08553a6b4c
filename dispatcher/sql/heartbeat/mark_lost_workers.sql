-- mark_lost_workers: mark the workers that fell silent; one that speaks again is no longer lost. One whose row another
-- transaction has locked can't speak: it is left to the next look, and then lives while its heartbeats renew what it
-- holds.
UPDATE dispatcher_worker AS worker
   SET lost_at = clock.now
  FROM (SELECT {{now}} AS now) AS clock
 WHERE worker.id = ANY (ARRAY(
       SELECT silent.id
         FROM dispatcher_worker AS silent
        WHERE silent.lost_at IS NULL AND silent.stopped_at IS NULL AND silent.seen_at < {{now}} - %(lease)s::interval
          AND silent.id <> ALL (ARRAY(SELECT slot.worker_id
                                        FROM dispatcher_slot AS slot
                                       WHERE slot.lease_until >= {{now}} AND slot.worker_id IS NOT NULL))
        ORDER BY silent.id
          FOR NO KEY UPDATE SKIP LOCKED))
RETURNING worker.name
