-- find_opened: which of these keys are open for lanes parked on them, seen after the commit of a step: those whose room
-- it gave back, and those that it was made for. The step looked for such lanes before its commit, and does not lock the
-- keys that it frees: another worker may have parked one meanwhile, and looked again before this commit. Whichever of
-- the two commits last sees the other.
-- With the lane that is first on each; one that the step has just parked there is no news. `is_others`: that lane is
-- left to others: it is of a queue that is not of `queues`, or not direct any more, or it spends a key of `avoid`.
SELECT released.id AS key, first.id AS lane, first.is_others
  FROM ({{keys_released(%(keys)s::bigint[])}}) AS released
 CROSS JOIN LATERAL (
       SELECT lane.id,
              lane.queue <> ALL (%(queues)s::text[]) OR {{queue_delivery(lane.queue)}} <> 'direct'
              OR lane.key_ids && %(avoid)s::bigint[]
              OR {{queue_spends(lane.queue, %(avoid)s::bigint[])}} AS is_others
         FROM dispatcher_lane AS lane
        WHERE lane.parked_on_id = released.id
        ORDER BY lane.priority DESC, lane.served_at, lane.id
        LIMIT 1) AS first
