-- parked_queues: the queues of the lanes that are parked on a key. Hops on the index lanesite_place.
CREATE FUNCTION @parked_queues(p_key bigint) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    WITH RECURSIVE turn (queue) AS (
      SELECT min(site.queue) FROM dispatcher_lanesite AS site WHERE site.place = p_key
       UNION ALL
      SELECT (SELECT min(site.queue) FROM dispatcher_lanesite AS site
               WHERE site.place = p_key AND site.queue > turn.queue)
        FROM turn
       WHERE turn.queue IS NOT NULL
    )
    SELECT array_agg(turn.queue) FROM turn WHERE turn.queue IS NOT NULL);
END $$;
