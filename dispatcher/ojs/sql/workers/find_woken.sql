-- find_woken: those of these marks that were taken, or are gone: their fetches look again.
SELECT mark.id
  FROM unnest(%(marks)s::uuid[]) AS mark (id)
 WHERE NOT EXISTS (SELECT FROM dispatcher_feed AS feed WHERE feed.id = mark.id AND feed.idle_at IS NOT NULL)
