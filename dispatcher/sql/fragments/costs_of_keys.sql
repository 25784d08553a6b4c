-- costs_of_keys(costs, keys): the cost of each of these keys, by name, in their order; one that the JSON `costs` does
-- not name costs 1.
ARRAY(SELECT COALESCE(({{costs}} ->> spent.name)::int, 1)
        FROM unnest({{keys}}) WITH ORDINALITY AS spent (name, place)
       ORDER BY spent.place)
