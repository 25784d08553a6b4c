-- lock_released: lock the lane that the end of a call lets go on first, and its keys, for admit_released, which follows
-- in the same transaction; a setting of the transaction takes them to it.
-- The lane: the first of those that are parked on a key of the call's lane, or on its queue's own, and that a release
-- opens, see find_released_room. A lane that another transaction has locked is skipped; one of whose keys is locked is
-- left; one that sleeps by now (`asleep`) is looked at by the caller after the commit. What is free must be
-- counted by a later statement: this one's snapshot is older than its locks. Relies on the primary keys and
-- lane_parked.
WITH released AS MATERIALIZED (
    SELECT {{keys_of_lane(lane)}} AS ids
      FROM dispatcher_callqueue AS call
      JOIN dispatcher_lane AS lane ON lane.id = call.lane_id
     WHERE call.id = %(call)s::uuid
), opened AS MATERIALIZED (
    SELECT key.id
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY ((SELECT released.ids FROM released)::bigint[]) AND key.concurrency IS NOT NULL
       AND (key.opens_at IS NULL OR key.opens_at <= clock_timestamp())
), parked AS MATERIALIZED (
    SELECT front.id, front.queue, front.key_ids, front.priority, front.served_at, front.is_asleep
      FROM opened
     CROSS JOIN LATERAL (
           SELECT mine.id, mine.queue, mine.key_ids, mine.priority, mine.served_at, mine.is_asleep
             FROM (SELECT lane.id
                     FROM dispatcher_lane AS lane
                    WHERE lane.parked_on_id = opened.id
                    ORDER BY lane.priority DESC, lane.served_at, lane.id) AS seen
            CROSS JOIN LATERAL ({{lane_locked(seen.id)}}) AS mine
            LIMIT 1) AS front
), first AS MATERIALIZED (
    SELECT parked.id, parked.queue, parked.key_ids
      FROM parked
     ORDER BY parked.priority DESC, parked.served_at, parked.id
     LIMIT 1
), {{lanes_chosen}}
SELECT ARRAY(SELECT parked.id FROM parked WHERE parked.is_asleep) AS asleep,
       set_config('dispatcher.chosen', chosen.lanes::text, true) AS chosen_lanes,
       set_config('dispatcher.locked', chosen.keys::text, true) AS locked_keys
  FROM chosen
