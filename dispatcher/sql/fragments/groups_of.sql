-- groups_of(keys): a subquery: the groups that these keys are members of, found by the beginnings of their names. Where
-- there is no group, it reads nothing but the empty index key_group.
SELECT joined.id
  FROM dispatcher_ratelimitkey AS member
 CROSS JOIN LATERAL (
       SELECT several.id
         FROM dispatcher_ratelimitkey AS several
        WHERE several.is_group
          AND several.name = ANY (ARRAY(SELECT left(member.name, place) || '*'
                                          FROM generate_series(1, length(member.name)) AS place))) AS joined
 WHERE (SELECT first.id FROM dispatcher_ratelimitkey AS first WHERE first.is_group ORDER BY first.name LIMIT 1)
       IS NOT NULL
   AND member.id = ANY ({{keys}}) AND NOT member.is_group
