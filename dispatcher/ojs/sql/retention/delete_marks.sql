-- delete_marks: delete the marks of fetches that waited in a process that has died (see mark_waiting).
DELETE FROM dispatcher_process AS process
 WHERE COALESCE(process.idle_at < {{now}} - %(retention)s::interval, true)
   AND process.worker_id IS NULL
