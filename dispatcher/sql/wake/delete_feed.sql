-- delete_feed: forget the feed of a worker that stops, and those of workers that have stopped or are lost.
DELETE FROM dispatcher_feed AS feed
 WHERE feed.worker_id = %(worker)s::uuid
    OR NOT EXISTS (SELECT
                     FROM dispatcher_worker AS worker
                    WHERE worker.id = feed.worker_id AND worker.stopped_at IS NULL AND worker.lost_at IS NULL)
