-- notify_workers: notify these workers, after the commit of who took their idle marks.
SELECT {{worker_notified(worker.id)}} AS sent
  FROM unnest(%(workers)s::uuid[]) AS worker (id)
