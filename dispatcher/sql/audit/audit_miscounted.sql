-- audit_miscounted: keys with more in flight than a lone send takes as known, which would let it admit too many.
-- Both are of one snapshot; an admission writes its slots and its number together. Slots are read whole, as in
-- audit_over_concurrency.
WITH held AS MATERIALIZED (
    SELECT slot.key_id, sum(slot.cost)::bigint AS cost,
           COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0)::bigint AS unstarted
      FROM dispatcher_slot AS slot
     WHERE slot.key_id IS NOT NULL
     GROUP BY slot.key_id
)
SELECT 'key ' || key.name AS what, key.id::text AS target, '' AS version,
       json_build_object('in_flight', held.cost, 'most_held', key.most_held,
                         'unstarted', held.unstarted, 'most_unstarted', key.most_unstarted) AS facts,
       count(*) OVER () AS total
  FROM held
  JOIN dispatcher_ratelimitkey AS key ON key.id = held.key_id
 WHERE key.counted_admissions = key.admissions
   AND (held.cost > key.most_held OR held.unstarted > key.most_unstarted)
 ORDER BY key.name, key.id
 LIMIT %(most)s::int
