-- members_of(key_group): a subquery: the keys that a group may choose. No character of a name comes after `~`. Relies
-- on the index of key names by character.
SELECT member.id
  FROM dispatcher_ratelimitkey AS member
 WHERE member.name ~>=~ rtrim({{key_group}}.name, '*') AND member.name ~<~ (rtrim({{key_group}}.name, '*') || '~')
   AND NOT member.is_group
