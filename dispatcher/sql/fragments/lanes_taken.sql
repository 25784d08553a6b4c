-- lanes_taken(lanes, due, shares): the statement finish_and_choose, with the lanes of this CTE in the order of `due`.
WITH {{clock}}, {{attempts_ended}}, direct AS MATERIALIZED (
    -- The worker may not have noticed yet that one is not any more.
    SELECT queue.name
      FROM dispatcher_queue AS queue
     WHERE queue.name = ANY (%(queues)s::text[]) AND queue.delivery = 'direct'
       AND NOT ({{queue_spends(queue.name, %(avoid)s::bigint[])}})
), opened AS MATERIALIZED (
    SELECT unnest(freed_keys.ids || %(keys)s::bigint[]) AS id FROM freed_keys
     UNION
    SELECT key_group.id FROM ({{groups_of(%(keys)s::bigint[])}}) AS key_group
), parked AS MATERIALIZED (
    SELECT front.id, front.queue, front.key_ids, front.priority, front.served_at, front.is_asleep
      FROM opened
     CROSS JOIN LATERAL (
           SELECT mine.id, mine.queue, mine.key_ids, mine.priority, mine.served_at, mine.is_asleep
             FROM (SELECT lane.id
                     FROM dispatcher_lane AS lane
                    WHERE lane.parked_on_id = opened.id AND lane.queue = ANY (ARRAY(SELECT direct.name FROM direct))
                      AND NOT lane.key_ids && %(avoid)s::bigint[]
                    ORDER BY lane.priority DESC, lane.served_at, lane.id
                    {{may_be_locked(%(most)s::int)}}) AS seen
            CROSS JOIN LATERAL ({{lane_locked(seen.id)}}) AS mine
            LIMIT %(most)s::int) AS front
), held AS MATERIALIZED (
    SELECT front.id, front.queue, front.key_ids, front.priority, front.served_at, front.is_asleep
      FROM direct AS queue
     CROSS JOIN LATERAL ({{held_lanes(queue.name, %(most)s::int)}}) AS front
), found AS NOT MATERIALIZED (
    SELECT id, id AS lane_id, queue, key_ids, priority, 1 AS turn, served_at FROM parked
     UNION ALL SELECT id, id, queue, key_ids, priority, 1, served_at FROM held
), weighted_found AS MATERIALIZED (
    {{by_weight(found, {{shares}})}}
), first AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.key_ids
      FROM {{lanes}} AS lane
     ORDER BY lane.priority DESC, {{due}}, lane.served_at, lane.id
     LIMIT %(most)s::int
), {{lanes_chosen}}
SELECT ARRAY(SELECT ended.id FROM ended) AS calls, freed_keys.ids AS keys, cardinality(chosen.lanes) AS lanes,
       ARRAY(SELECT DISTINCT busy.key_id FROM busy) AS busy,
       {{lanes_left_asleep(parked, held)}} AS asleep,
       set_config('dispatcher.chosen', chosen.lanes::text, true) AS chosen_lanes,
       set_config('dispatcher.locked', chosen.keys::text, true) AS locked_keys
  FROM chosen
 CROSS JOIN freed_keys
