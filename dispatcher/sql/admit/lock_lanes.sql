-- lock_lanes: take the lanes of one pass, and lock their keys in order of id, then their queues.
-- Of each kind, parked, awake and held, up to `most`: keys and queues share that, each has one lane at the least.
-- The lanes: those named; those at the front of the keys named, and of the named lanes' own keys (a newcomer does not
-- overtake them); if asked, those awake; and those that an open queue has held, of the queues named and of all these
-- lanes. What another pass has locked is skipped, not waited for; a lane that has changed since the snapshot is taken,
-- too: each is locked by its id alone.
-- A key that somebody else has locked is skipped as well, and with it the lanes that spend it: they come back in
-- `left_lanes`, each with such a key; `is_left_wanted` are those that were asked for by name, key or queue. Only for
-- the key `wait_for` the statement waits, before it has locked any other key, for as long as lock_timeout allows. Lanes
-- that are awake or held and spend a key of `avoid` are not taken: they would only take the places of others.
-- With a group its members are locked, too; one that somebody else has locked is skipped, and keeps no lane out.
-- `groups` and `members` are pairs of these. A key that is named opens its groups as well.
-- A queue is open if `deliveries` has its own; with `needs_worker`, if a live worker serves it, too. A pass for direct
-- queues takes parked lanes of the queues named alone.
-- A queue is locked for as long as the transaction: alone where the pass may come close to the queue's bound (it is
-- `tight`), else together with others, so that passes wait for each other only where they must.
-- Counting must come in a later statement: this one's snapshot is older than its locks.
-- Relies on the indexes lane_turn, lane_parked, lane_held and call_in_flight.
WITH {{clock}}, named AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.key_ids
      FROM dispatcher_lane AS lane
     WHERE lane.id = ANY (%(lanes)s::bigint[])
       FOR NO KEY UPDATE SKIP LOCKED
), shut AS MATERIALIZED (
    SELECT id, bool_or(is_named) AS is_named
      FROM (SELECT unnest(%(keys)s::bigint[]), true
            UNION ALL SELECT key_group.id, true FROM ({{groups_of(%(keys)s::bigint[])}}) AS key_group
            UNION ALL SELECT unnest(named.key_ids), false FROM named
            UNION ALL SELECT key.id, false
                        FROM named JOIN dispatcher_ratelimitkey AS key ON key.name = 'queue:' || named.queue
           ) AS key (id, is_named)
     GROUP BY id
     ORDER BY is_named DESC, id
), parked AS MATERIALIZED (
    SELECT front.id, front.queue, front.key_ids, key.is_named
      FROM shut AS key
     CROSS JOIN LATERAL (
           SELECT mine.id, mine.queue, mine.key_ids
             FROM (SELECT lane.id
                     FROM dispatcher_lane AS lane
                    WHERE lane.parked_on_id = key.id
                      AND (%(deliveries)s::text[] <> '{direct}' OR lane.queue = ANY (%(queues)s::text[]))
                    ORDER BY lane.priority DESC, lane.served_at, lane.id
                    {{may_be_locked(%(most)s::int)}}) AS seen
            CROSS JOIN LATERAL ({{lane_locked(seen.id)}}) AS mine
            LIMIT (SELECT GREATEST(1, %(most)s::int / GREATEST(1, count(*))) FROM shut)) AS front
     LIMIT %(most)s::int
), awake AS MATERIALIZED (
    SELECT mine.id, mine.queue, mine.key_ids
      FROM (SELECT lane.id
              FROM dispatcher_lane AS lane
             WHERE lane.is_awake AND %(awake)s::bool
               -- A CASE, of which the planner knows nothing: where it takes few rows to be left, it reads and sorts all
               -- that are awake.
               AND CASE WHEN lane.id = ANY (%(lanes)s::bigint[]) OR lane.key_ids && %(avoid)s::bigint[] THEN false
                        ELSE lane.queue <> ALL (ARRAY(SELECT substr(key.name, 7)
                                                        FROM dispatcher_ratelimitkey AS key
                                                       WHERE key.id = ANY (%(avoid)s::bigint[])
                                                         AND starts_with(key.name, 'queue:')))
                   END
             ORDER BY lane.priority DESC, lane.served_at, lane.id
             {{may_be_locked(%(most)s::int)}}) AS seen
     CROSS JOIN LATERAL ({{lane_locked(seen.id)}}) AS mine
     LIMIT %(most)s::int
), queue AS MATERIALIZED (
    SELECT name.name, hashtextextended(name.name, 20251) AS number, going.unclaimed,
           going.unclaimed + %(slack)s::int > %(ahead)s::int AS is_tight,
           {{queue_is_served(name.name, clock.now)}} AS is_served
      FROM clock
     CROSS JOIN (SELECT unnest(%(queues)s::text[]) UNION SELECT queue FROM named UNION SELECT queue FROM parked
                  UNION SELECT queue FROM awake) AS name (name)
     CROSS JOIN LATERAL ({{queue_unclaimed(name.name)}}) AS going
), share AS MATERIALIZED (
    SELECT GREATEST(1, %(most)s::int / GREATEST(1, count(*))) AS most FROM queue
), held AS MATERIALIZED (
    SELECT front.id, front.queue, front.key_ids
      FROM queue
     CROSS JOIN LATERAL ({{held_lanes(queue.name, (SELECT share.most FROM share))}}) AS front
     WHERE queue.is_served AND NOT ({{queue_spends(queue.name, %(avoid)s::bigint[])}})
       AND queue.unclaimed < %(ahead)s::int
), taken AS MATERIALIZED (
    SELECT id, queue, key_ids, bool_or(is_wanted) AS is_wanted
      FROM (SELECT id, queue, key_ids, true AS is_wanted FROM named
            UNION ALL SELECT id, queue, key_ids, is_named FROM parked
            UNION ALL SELECT id, queue, key_ids, false FROM awake
            UNION ALL SELECT id, queue, key_ids, true FROM held) AS found
     GROUP BY id, queue, key_ids
), spent AS MATERIALIZED (
    SELECT taken.id AS lane_id, unnest(taken.key_ids) AS key_id FROM taken
     UNION SELECT taken.id, queue_key.id
             FROM (SELECT DISTINCT taken.queue FROM taken) AS queue
            CROSS JOIN LATERAL (
                  SELECT key.id
                    FROM dispatcher_ratelimitkey AS key
                   WHERE key.name = 'queue:' || queue.queue
                   LIMIT 1) AS queue_key
             JOIN taken ON taken.queue = queue.queue
), pair AS MATERIALIZED (
    SELECT key_group.id AS group_id, member.id AS member_id
      FROM dispatcher_ratelimitkey AS key_group
     CROSS JOIN LATERAL ({{members_of(key_group)}}) AS member
     WHERE key_group.is_group AND key_group.id = ANY (ARRAY(SELECT spent.key_id FROM spent))
), wanted AS MATERIALIZED (
    SELECT ARRAY(SELECT spent.key_id FROM spent UNION SELECT pair.member_id FROM pair) AS ids
), waited AS MATERIALIZED (
    SELECT key.id
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = %(wait_for)s::bigint AND key.id = ANY ((SELECT wanted.ids FROM wanted)::bigint[])
       FOR NO KEY UPDATE
), locked AS MATERIALIZED (
    -- An array, and a limit above: joined, the planner would read all keys to find these. The count comes first:
    -- a pass that waits holds no key that another one waits for.
    SELECT key.id
      FROM dispatcher_ratelimitkey AS key
     WHERE (SELECT count(*) FROM waited) >= 0 AND key.id = ANY ((SELECT wanted.ids FROM wanted)::bigint[])
       AND key.id IS DISTINCT FROM %(wait_for)s::bigint
     ORDER BY key.id
       FOR NO KEY UPDATE SKIP LOCKED
), busy AS MATERIALIZED (
    SELECT key.id
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT spent.key_id FROM spent
                           EXCEPT SELECT id FROM locked
                           EXCEPT SELECT id FROM waited))
), unable AS MATERIALIZED (
    SELECT spent.lane_id AS id, min(spent.key_id) AS key_id
      FROM busy
      JOIN spent ON spent.key_id = busy.id
     GROUP BY spent.lane_id
), able AS MATERIALIZED (
    SELECT taken.id FROM taken WHERE NOT EXISTS (SELECT FROM unable WHERE unable.id = taken.id)
)
SELECT ARRAY(SELECT id FROM able) AS lanes,
       ARRAY(SELECT spends.key_id
               FROM (SELECT spent.key_id FROM able JOIN spent ON spent.lane_id = able.id
                      UNION
                     SELECT pair.member_id
                       FROM able
                       JOIN spent ON spent.lane_id = able.id
                       JOIN pair ON pair.group_id = spent.key_id) AS spends
              WHERE spends.key_id IN (SELECT id FROM locked UNION ALL SELECT id FROM waited)
              ORDER BY spends.key_id) AS keys,
       ARRAY(SELECT group_id FROM pair ORDER BY group_id, member_id) AS groups,
       ARRAY(SELECT member_id FROM pair ORDER BY group_id, member_id) AS members,
       ARRAY(SELECT id FROM unable ORDER BY id) AS left_lanes,
       ARRAY(SELECT key_id FROM unable ORDER BY id) AS left_keys,
       ARRAY(SELECT DISTINCT queue FROM held) AS held_queues,
       ARRAY(SELECT taken.is_wanted
               FROM unable
               JOIN taken ON taken.id = unable.id
              ORDER BY unable.id) AS is_left_wanted,
       ARRAY(SELECT name
               FROM (SELECT name, is_tight,
                            CASE WHEN is_tight THEN pg_advisory_xact_lock(number)
                                 ELSE pg_advisory_xact_lock_shared(number) END::text AS lock
                       FROM (SELECT name, number, is_tight
                               FROM queue
                              WHERE is_served
                              ORDER BY number) AS served) AS guarded
              WHERE lock IS NOT NULL AND is_tight) AS tight
