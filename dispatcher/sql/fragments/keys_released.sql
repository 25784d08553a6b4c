-- keys_released(keys): a subquery: which of these keys, and of their groups, a release may have opened for a lane that
-- is parked on them. A release opens a concurrency limit and nothing else. Relies on the indexes lane_parked and
-- slot_key.
SELECT key.id
  FROM dispatcher_ratelimitkey AS key
 WHERE key.id = ANY ({{keys}})
   AND (key.concurrency IS NOT NULL OR key.override_concurrency IS NOT NULL)
   AND NOT key.is_paused AND (key.opens_at IS NULL OR key.opens_at <= {{now}})
   AND CASE WHEN {{first_parked_lane(key.id)}} IS NOT NULL
            THEN COALESCE((SELECT sum(slot.cost)
                             FROM dispatcher_slot AS slot
                            WHERE slot.key_id = key.id)
                          < CASE WHEN key.override_until IS NULL THEN key.concurrency END, true)
       END
 UNION
SELECT key_group.id
  FROM ({{groups_of({{keys}})}}) AS key_group
 WHERE {{first_parked_lane(key_group.id)}} IS NOT NULL
