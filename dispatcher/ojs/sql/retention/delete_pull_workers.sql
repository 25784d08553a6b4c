-- delete_pull_workers: delete workers that fetch over HTTP and have not been seen for long.
DELETE FROM dispatcher_ojs_pullworker
 WHERE seen_at < {{now}} - %(retention)s::interval
