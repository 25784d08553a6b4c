-- lock_lanes: take the lanes of one pass, and lock their keys in order of id.
-- The lanes: those named; those at the front of the keys named, and of the named lanes' own keys (a newcomer does
-- not overtake them); and, if asked, those awake. What another pass has locked is skipped, not waited for.
-- Counting must come in a later statement: this one's snapshot is older than its locks.
-- Relies on the indexes lane_awake and lane_parked.
WITH named AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.key_ids
      FROM dispatcher_lane AS lane
     WHERE lane.id = ANY (%(lanes)s::bigint[])
       FOR NO KEY UPDATE SKIP LOCKED
), parked AS MATERIALIZED (
    SELECT front.id, front.queue, front.key_ids
      FROM (SELECT unnest(%(keys)s::bigint[]) UNION SELECT unnest(named.key_ids) FROM named
            UNION SELECT key.id FROM named JOIN dispatcher_ratelimitkey AS key ON key.name = 'queue:' || named.queue
           ) AS key (id)
     CROSS JOIN LATERAL (
           SELECT lane.id, lane.queue, lane.key_ids
             FROM dispatcher_lane AS lane
            WHERE lane.parked_on_id = key.id
            ORDER BY lane.priority DESC, lane.served_at, lane.id
            LIMIT %(most)s::int
              FOR NO KEY UPDATE SKIP LOCKED) AS front
), awake AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.key_ids
      FROM dispatcher_lane AS lane
     WHERE lane.is_awake AND %(awake)s::bool
     ORDER BY lane.priority DESC, lane.served_at, lane.id
     LIMIT %(most)s::int
       FOR NO KEY UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT id, queue, key_ids FROM named
     UNION SELECT id, queue, key_ids FROM parked
     UNION SELECT id, queue, key_ids FROM awake
), spent AS MATERIALIZED (
    SELECT unnest(taken.key_ids) AS id FROM taken
     UNION SELECT queue_key.id
             FROM (SELECT DISTINCT 'queue:' || taken.queue AS name FROM taken) AS queue
            CROSS JOIN LATERAL (
                  SELECT key.id FROM dispatcher_ratelimitkey AS key WHERE key.name = queue.name LIMIT 1) AS queue_key
), locked AS MATERIALIZED (
    -- An array, and a limit above: joined, the planner would read all keys to find these.
    SELECT key.id
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT spent.id FROM spent))
     ORDER BY key.id
       FOR NO KEY UPDATE
)
SELECT ARRAY(SELECT id FROM taken) AS lanes, ARRAY(SELECT id FROM locked) AS keys
