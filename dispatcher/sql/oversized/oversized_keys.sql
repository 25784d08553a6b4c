-- oversized_keys: keys for which calls wait alone, since they cost too much: those named and their groups, or if none
-- is the next ones after `after`; each with its limits and the least that such a call costs. A key that is gone comes
-- back without limits. Hops from key to key on the index call_oversized, so the number of such calls costs nothing.
WITH RECURSIVE hop AS (
    (SELECT call.oversized_key_id AS key_id, 1 AS number
       FROM dispatcher_callqueue AS call
      WHERE call.oversized_key_id > %(after)s::bigint AND %(keys)s::bigint[] IS NULL
      ORDER BY call.oversized_key_id
      LIMIT 1)
     UNION ALL
    SELECT next.key_id, hop.number + 1
      FROM hop
     CROSS JOIN LATERAL (
           SELECT call.oversized_key_id AS key_id
             FROM dispatcher_callqueue AS call
            WHERE call.oversized_key_id > hop.key_id
            ORDER BY call.oversized_key_id
            LIMIT 1) AS next
     WHERE hop.number < %(most)s::int
)
SELECT found.key_id AS id, cheapest.cost AS cheapest, {{now}} AS now, COALESCE(key.is_group, false) AS is_group,
       {{policy_columns(key)}}
  FROM (SELECT hop.key_id FROM hop UNION SELECT unnest(%(keys)s::bigint[])
         UNION {{groups_of(%(keys)s::bigint[])}}) AS found
 CROSS JOIN LATERAL (
       SELECT call.oversized_cost AS cost
         FROM dispatcher_callqueue AS call
        WHERE call.oversized_key_id = found.key_id
        ORDER BY call.oversized_cost
        LIMIT 1) AS cheapest
  LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = found.key_id
 ORDER BY found.key_id
