-- queues: the queues that have a row or a lane; one that the broker delivers may have no row. Hops on the unique index
-- of lane kinds.
CREATE FUNCTION @queues() RETURNS TABLE (name text) LANGUAGE sql STABLE AS $$
WITH RECURSIVE hop (name) AS (
  SELECT min(lane.queue)::text FROM dispatcher_lane AS lane
   UNION ALL
  SELECT (SELECT min(lane.queue) FROM dispatcher_lane AS lane WHERE lane.queue > hop.name)::text
    FROM hop
   WHERE hop.name IS NOT NULL
)
SELECT hop.name FROM hop WHERE hop.name IS NOT NULL
 UNION
SELECT queue.name FROM dispatcher_queue AS queue
$$;
