-- groups_named(name): a subquery: the groups of a key with this name. Relies on the index key_group.
SELECT several.id
  FROM dispatcher_ratelimitkey AS several
 WHERE several.is_group
   AND several.name = ANY (ARRAY(SELECT left({{name}}, place) || '*'
                                   FROM generate_series(1, length({{name}})) AS place))
