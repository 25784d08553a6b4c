-- groups_named(name): a subquery: the groups of a key with this name. Relies on the index key_group.
SELECT key_group.id
  FROM dispatcher_ratelimitkey AS key_group
 WHERE key_group.is_group
   AND key_group.name = ANY (ARRAY(SELECT left({{name}}, place) || '*'
                                   FROM generate_series(1, length({{name}})) AS place))
