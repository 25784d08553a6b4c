-- delete_workers: forget workers that are long gone.
DELETE FROM dispatcher_worker
 WHERE seen_at < COALESCE(%(now)s::timestamptz, clock_timestamp()) - %(retention)s::interval
