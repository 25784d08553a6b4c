-- delete_feed: forget the feed of a worker that stops, and those of workers that have stopped or are lost. One that
-- another transaction has locked is left to the next worker that stops.
DELETE FROM dispatcher_feed AS feed
 WHERE feed.worker_id = ANY (ARRAY(
         SELECT gone.worker_id
           FROM dispatcher_feed AS gone
          WHERE gone.worker_id = %(worker)s::uuid
             OR NOT EXISTS (SELECT
                              FROM dispatcher_worker AS worker
                             WHERE worker.id = gone.worker_id AND worker.stopped_at IS NULL AND worker.lost_at IS NULL)
            FOR UPDATE SKIP LOCKED))
