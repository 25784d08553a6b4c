-- notify_workers: notify these workers on their channels, after the commit of who took their idle marks. In a
-- transaction of its own: a commit that notifies holds a lock of the whole database.
SELECT pg_notify('dispatcher_' || replace(worker.id::text, '-', ''), '')::text AS sent
  FROM unnest(%(workers)s::uuid[]) AS worker (id)
