-- lane_of: the lane of a kind of calls and its keys, locked against removal; no row if the lane or a key does not
-- exist. Each key by its name alone: a plan that was made while there were few keys would read them all. Relies on the
-- unique indexes of key names and lane kinds.
CREATE FUNCTION @lane_of(p_queue text, p_priority smallint, p_on_limit text, p_names text[], OUT id bigint,
    OUT key_ids bigint[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  SELECT lane.id, lane.key_ids INTO id, key_ids
    FROM dispatcher_lane AS lane
   WHERE lane.queue = p_queue AND lane.priority = p_priority AND lane.on_limit = p_on_limit
     AND lane.key_ids = ARRAY(
         SELECT key.id
           FROM unnest(p_names) AS named (name)
          CROSS JOIN LATERAL (
                SELECT stored.id
                  FROM dispatcher_ratelimitkey AS stored
                 WHERE stored.name = named.name
                 LIMIT 1) AS key
          ORDER BY key.id)
     AND cardinality(lane.key_ids) = cardinality(p_names)
   LIMIT 1
     FOR KEY SHARE SKIP LOCKED;
END $$;
