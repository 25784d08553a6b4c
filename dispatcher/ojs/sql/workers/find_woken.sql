-- find_woken: those of these marks that were taken, or are gone: their fetches look again.
SELECT mark.id
  FROM unnest(%(marks)s::uuid[]) AS mark (id)
 WHERE NOT EXISTS (SELECT FROM dispatcher_process AS process WHERE process.id = mark.id AND process.idle_at IS NOT NULL)
