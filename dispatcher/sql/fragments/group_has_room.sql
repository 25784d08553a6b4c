-- group_has_room(key_group, cost, moment): whether a member of a group has room for a cost, and time plays no part in
-- it: the group waits for no time, or the member has no limit but its concurrency.
EXISTS (SELECT
          FROM ({{members_of({{key_group}})}}) AS member
          JOIN dispatcher_ratelimitkey AS key ON key.id = member.id
         CROSS JOIN LATERAL (
               SELECT key.override_until > {{moment}} AS holds) AS override
         CROSS JOIN LATERAL (
               SELECT {{limit_in_force(override.holds, key, concurrency)}} AS concurrency,
                      {{limit_in_force(override.holds, key, rate_limit)}} AS rate_limit,
                      {{limit_in_force(override.holds, key, throttle_limit)}} AS throttle_limit) AS force
         CROSS JOIN LATERAL (
               SELECT COALESCE(sum(slot.cost), 0) AS cost
                 FROM dispatcher_slot AS slot
                WHERE slot.key_id = key.id) AS in_use
         WHERE NOT key.is_paused AND (key.blocked_until IS NULL OR key.blocked_until <= {{moment}})
           AND ({{key_group}}.opens_at IS NULL
                OR (force.rate_limit IS NULL AND force.throttle_limit IS NULL AND key.blocked_until IS NULL))
           AND (force.rate_limit IS NULL OR force.rate_limit >= {{cost}})
           AND (force.concurrency IS NULL OR in_use.cost + {{cost}} <= force.concurrency))
