-- delete_pull_workers: forget workers that fetched over HTTP and were not heard of for long.
DELETE FROM dispatcher_pullworker
 WHERE seen_at < {{now}} - %(retention)s::interval
