-- choose_fetchable: lock up to `most` lanes of a queue that workers fetch from, and their keys, for start_chosen, which
-- follows in the same transaction. A setting of the transaction takes the lanes and keys to it.
-- The lanes: those that the queue holds and those that are awake; by priority, then the least recently served. Lanes
-- and keys that another transaction has locked are skipped, and the lanes of such keys are left out (`busy`), and so
-- are those that spend a key of `avoid`. None, if calls of the queue are due (`is_due`), where the caller looks for
-- these (`looks`), or if it is no such queue. Locks the lanes, then the keys in order of id. Relies on lane_held,
-- lane_awake and call_due_queue.
WITH queue AS MATERIALIZED (
    SELECT queue.name, time.is_due
      FROM dispatcher_queue AS queue
     CROSS JOIN LATERAL (
           SELECT %(looks)s::bool AND {{calls_are_due(queue.name)}} AS is_due) AS time
     WHERE queue.name = %(queue)s::text AND queue.delivery = 'http'
       AND NOT ({{queue_spends(queue.name, %(avoid)s::bigint[])}})
), held AS MATERIALIZED (
    SELECT front.id, front.queue, front.key_ids, front.priority, front.served_at, front.is_asleep
      FROM queue
     CROSS JOIN LATERAL ({{held_lanes(queue.name, %(most)s::int)}}) AS front
     WHERE NOT queue.is_due
), awake AS MATERIALIZED (
    SELECT front.id, front.queue, front.key_ids, front.priority, front.served_at, front.is_asleep
      FROM queue
     CROSS JOIN LATERAL (
           SELECT mine.id, mine.queue, mine.key_ids, mine.priority, mine.served_at, mine.is_asleep
             FROM (SELECT lane.id
                     FROM dispatcher_lane AS lane
                    WHERE lane.is_awake AND lane.queue = queue.name AND NOT lane.key_ids && %(avoid)s::bigint[]
                    ORDER BY lane.priority DESC, lane.queue
                    {{may_be_locked(%(most)s::int)}}) AS seen
            CROSS JOIN LATERAL ({{lane_locked(seen.id)}}) AS mine
            LIMIT %(most)s::int) AS front
     WHERE NOT queue.is_due
), first AS MATERIALIZED (
    SELECT found.id, found.queue, found.key_ids
      FROM (SELECT id, queue, key_ids, priority, served_at FROM held
             UNION ALL SELECT id, queue, key_ids, priority, served_at FROM awake) AS found
     ORDER BY found.priority DESC, found.served_at, found.id
     LIMIT %(most)s::int
), {{lanes_chosen}}
SELECT cardinality(chosen.lanes) AS lanes, ARRAY(SELECT DISTINCT busy.key_id FROM busy) AS busy,
       {{lanes_left_asleep(held, awake)}} AS asleep,
       EXISTS (SELECT FROM queue WHERE queue.is_due) AS is_due,
       set_config('dispatcher.chosen', chosen.lanes::text, true) AS chosen_lanes,
       set_config('dispatcher.locked', chosen.keys::text, true) AS locked_keys
  FROM chosen
