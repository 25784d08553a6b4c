-- delete_feed: delete the marks of these processes, and those of workers that have stopped or are lost.
DELETE FROM dispatcher_feed AS feed
 WHERE feed.id = ANY (%(processes)s::uuid[])
    OR (feed.worker_id IS NOT NULL
        AND NOT EXISTS (SELECT
                          FROM dispatcher_worker AS worker
                         WHERE worker.id = feed.worker_id AND worker.stopped_at IS NULL AND worker.lost_at IS NULL))
