-- groups_of(keys): a subquery: the groups that these keys are members of. Where there is no group, it reads nothing but
-- the empty index key_group.
SELECT joined.id
  FROM dispatcher_ratelimitkey AS member
 CROSS JOIN LATERAL ({{groups_named(member.name)}}) AS joined
 WHERE {{any_group}} AND member.id = ANY ({{keys}}) AND NOT member.is_group
