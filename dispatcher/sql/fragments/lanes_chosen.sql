-- lanes_chosen: the CTEs that lock the keys of the lanes of the CTE `first`, in order of id, but those that another
-- transaction has locked; `busy` are these, with their lanes; `chosen` has the other lanes, and the keys.
spent AS MATERIALIZED (
    SELECT first.id AS lane_id, unnest(first.key_ids) AS key_id FROM first
     UNION ALL
    SELECT first.id, own.id
      FROM first
     CROSS JOIN LATERAL (
           SELECT key.id FROM dispatcher_ratelimitkey AS key WHERE key.name = 'queue:' || first.queue LIMIT 1) AS own
), locked AS MATERIALIZED (
    SELECT key.id
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT spent.key_id FROM spent))
     ORDER BY key.id
       FOR NO KEY UPDATE SKIP LOCKED
), busy AS MATERIALIZED (
    SELECT spent.lane_id, spent.key_id
      FROM spent
     WHERE spent.key_id <> ALL (ARRAY(SELECT locked.id FROM locked))
), chosen AS MATERIALIZED (
    SELECT ARRAY(SELECT first.id FROM first WHERE first.id NOT IN (SELECT busy.lane_id FROM busy)) AS lanes,
           ARRAY(SELECT locked.id FROM locked) AS keys
)
