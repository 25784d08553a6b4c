-- find_finished: what became of the attempt that this claim has ended by its own finish, whose answer was lost.
-- No row back means that the attempt was not ended, was ended by somebody else, or was followed by another claim.
-- `keys`: those of the call's lane and the members of its groups, and its queue's own: it is not known any more of
-- which it held slots.
SELECT call.state, call.lane_id,
       CASE WHEN call.state = 'retryable'
            THEN GREATEST(call.scheduled_at - clock_timestamp(), interval '0') END AS wait,
       lane.key_ids || ARRAY(SELECT key.id
                               FROM dispatcher_ratelimitkey AS key
                              WHERE key.name = 'queue:' || lane.queue
                             UNION ALL
                             SELECT member.id
                               FROM dispatcher_ratelimitkey AS key_group
                              CROSS JOIN LATERAL ({{members_of(key_group)}}) AS member
                              WHERE key_group.is_group AND key_group.id = ANY (lane.key_ids)) AS keys
  FROM dispatcher_callqueue AS call
  JOIN dispatcher_lane AS lane ON lane.id = call.lane_id
 WHERE call.id = %(call)s::uuid AND call.claim = %(claim)s::uuid AND call.ticket IS DISTINCT FROM %(ticket)s::uuid
