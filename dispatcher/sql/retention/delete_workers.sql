-- delete_workers: forget workers that are long gone.
DELETE FROM dispatcher_worker
 WHERE seen_at < {{now}} - %(retention)s::interval
