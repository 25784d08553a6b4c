-- member_limits: the limits of the members of these groups.
SELECT several.id AS group_id, key.id, {{policy_columns(key)}}
  FROM dispatcher_ratelimitkey AS several
 CROSS JOIN LATERAL ({{members_of(several)}}) AS member
  JOIN dispatcher_ratelimitkey AS key ON key.id = member.id
 WHERE several.id = ANY (%(groups)s::bigint[])
