-- member_limits: the limits of the members of these groups.
SELECT key_group.id AS group_id, key.id, {{policy_columns(key)}}
  FROM dispatcher_ratelimitkey AS key_group
 CROSS JOIN LATERAL ({{members_of(key_group)}}) AS member
  JOIN dispatcher_ratelimitkey AS key ON key.id = member.id
 WHERE key_group.id = ANY (%(groups)s::bigint[])
