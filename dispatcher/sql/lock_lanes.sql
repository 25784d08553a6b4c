-- lock_lanes: take the lanes of one pass, and lock their keys in order of id, then their queues.
-- The lanes: those named; those at the front of the keys named, and of the named lanes' own keys (a newcomer does
-- not overtake them); if asked, those awake; and those that an open queue has held, of the queues named and of all these
-- lanes. What another pass has locked is skipped, not waited for.
-- With `is_pull` a queue is open if workers fetch its calls over HTTP, else if Celery serves it.
-- A queue is locked for as long as the transaction: alone where the pass may come close to the queue's bound (it is
-- `tight`), else together with others, so that passes wait for each other only where they must.
-- Counting must come in a later statement: this one's snapshot is older than its locks.
-- Relies on the indexes lane_awake, lane_parked, lane_held and call_in_flight.
WITH clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
), named AS MATERIALIZED (
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
), queue AS MATERIALIZED (
    SELECT name.name, hashtextextended(name.name, 20251) AS number, going.unclaimed,
           going.unclaimed + %(slack)s::int > %(ahead)s::int AS is_tight,
           CASE WHEN EXISTS (SELECT FROM dispatcher_queue AS pulled WHERE pulled.name = name.name AND pulled.is_pulled)
                THEN %(is_pull)s::bool
                ELSE NOT %(is_pull)s::bool
                     AND (NOT %(is_gated)s::bool
                          OR EXISTS (SELECT
                                       FROM dispatcher_worker AS worker
                                      WHERE name.name = ANY (worker.queues) AND worker.serves_until > clock.now)) END AS is_served
      FROM clock
     CROSS JOIN (SELECT unnest(%(queues)s::text[]) UNION SELECT queue FROM named UNION SELECT queue FROM parked
                  UNION SELECT queue FROM awake) AS name (name)
     CROSS JOIN LATERAL (
           SELECT count(*) AS unclaimed
             FROM (SELECT
                     FROM dispatcher_callqueue AS call
                    WHERE call.queue = name.name AND call.state = 'dispatched'
                    LIMIT %(ahead)s::int) AS call) AS going
), held AS MATERIALIZED (
    SELECT front.id, front.queue, front.key_ids
      FROM queue
     CROSS JOIN LATERAL (
           SELECT lane.id, lane.queue, lane.key_ids
             FROM dispatcher_lane AS lane
            WHERE lane.is_held AND lane.queue = queue.name
            ORDER BY lane.priority DESC, lane.served_at, lane.id
            LIMIT %(most)s::int
              FOR NO KEY UPDATE SKIP LOCKED) AS front
     WHERE queue.is_served AND queue.unclaimed < %(ahead)s::int
), taken AS MATERIALIZED (
    SELECT id, queue, key_ids FROM named
     UNION SELECT id, queue, key_ids FROM parked
     UNION SELECT id, queue, key_ids FROM awake
     UNION SELECT id, queue, key_ids FROM held
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
SELECT ARRAY(SELECT id FROM taken) AS lanes, ARRAY(SELECT id FROM locked) AS keys,
       ARRAY(SELECT name
               FROM (SELECT name, is_tight,
                            CASE WHEN is_tight THEN pg_advisory_xact_lock(number)
                                 ELSE pg_advisory_xact_lock_shared(number) END::text AS lock
                       FROM (SELECT name, number, is_tight FROM queue WHERE is_served ORDER BY number) AS served) AS guarded
              WHERE lock IS NOT NULL AND is_tight) AS tight
