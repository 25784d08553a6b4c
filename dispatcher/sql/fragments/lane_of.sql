-- lane_of(kind): the lane of a kind of calls and its keys, locked against removal; no row if the lane or a key does not
-- exist. Each key by its name alone: a plan that was made while there were few keys would read them all. Relies on the
-- unique indexes of key names and lane kinds.
SELECT lane.id, lane.key_ids
  FROM dispatcher_lane AS lane
 WHERE lane.queue = {{kind}}.queue AND lane.priority = {{kind}}.priority AND lane.on_limit = {{kind}}.on_limit
   AND lane.key_ids = ARRAY(
       SELECT key.id
         FROM unnest({{kind}}.names) AS named (name)
        CROSS JOIN LATERAL (
              SELECT stored.id
                FROM dispatcher_ratelimitkey AS stored
               WHERE stored.name = named.name
               LIMIT 1) AS key
        ORDER BY key.id)
   AND cardinality(lane.key_ids) = cardinality({{kind}}.names)
 LIMIT 1
   FOR KEY SHARE SKIP LOCKED
