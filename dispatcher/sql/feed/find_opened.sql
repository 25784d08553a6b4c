-- find_opened: which of these keys are open for lanes parked on them, seen after the commit of a step: those whose room
-- it gave back, and those that it was made for. The step looked for such lanes before its commit, and does not lock the
-- keys that it frees: another worker may have parked one meanwhile, and looked again before this commit. Whichever of
-- the two commits last sees the other.
-- `other`: those of the keys whose first lane is left to others: it is of a queue that is not of `queues`, or it spends
-- a key of `avoid`.
WITH released AS MATERIALIZED (
    {{keys_released(%(keys)s::bigint[])}}
)
SELECT ARRAY(SELECT released.id FROM released) AS keys,
       ARRAY(SELECT released.id
               FROM released
              WHERE (SELECT lane.queue <> ALL (%(queues)s::text[]) OR lane.key_ids && %(avoid)s::bigint[]
                            OR {{queue_spends(lane.queue, %(avoid)s::bigint[])}}
                       FROM dispatcher_lane AS lane
                      WHERE lane.parked_on_id = released.id
                      ORDER BY lane.priority DESC, lane.served_at, lane.id
                      LIMIT 1)) AS other
