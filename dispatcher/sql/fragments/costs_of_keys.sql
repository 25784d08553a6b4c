-- costs_of_keys(costs, keys): the cost of each of these keys, in their order; one that the JSON `costs` does not name
-- costs 1. NULL without keys.
(SELECT array_agg(COALESCE(({{costs}} ->> key.name)::int, 1) ORDER BY spent.place)
   FROM unnest({{keys}}) WITH ORDINALITY AS spent (id, place)
   LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = spent.id)
