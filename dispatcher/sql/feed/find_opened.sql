-- find_opened: which of these keys a step has opened for lanes that are parked on them, seen after its commit. The step
-- looked for such lanes before it, and does not lock the keys that it frees: another worker may have parked one
-- meanwhile, and looked again before this commit. Whichever of the two commits last sees the other.
-- `other`: those of the keys whose first lane is of a queue that is not of `queues`.
WITH released AS MATERIALIZED (
    {{keys_released(%(keys)s::bigint[])}}
), opened AS MATERIALIZED (
    SELECT ARRAY(SELECT released.id FROM released) AS keys
)
SELECT opened.keys, {{keys_of_others(opened.keys)}} AS other FROM opened
