-- delete_process: delete the marks of these processes, and those of workers that have stopped or are lost. One that
-- another transaction has locked is left to the next process that leaves.
DELETE FROM dispatcher_process AS process
 WHERE process.id = ANY (ARRAY(
         SELECT gone.id
           FROM dispatcher_process AS gone
          WHERE gone.id = ANY (%(processes)s::uuid[])
             OR (gone.worker_id IS NOT NULL
                 AND NOT EXISTS (SELECT
                                   FROM dispatcher_worker AS worker
                                  WHERE worker.id = gone.worker_id
                                    AND worker.stopped_at IS NULL AND worker.lost_at IS NULL))
            FOR UPDATE SKIP LOCKED))
