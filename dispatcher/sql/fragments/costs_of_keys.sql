-- costs_of_keys(costs, ids): the cost of each of these keys, in their order; one that the JSON `costs` does not name
-- costs 1.
ARRAY(SELECT COALESCE(({{costs}} ->> spent.name)::int, 1)
        FROM dispatcher_ratelimitkey AS spent
       WHERE spent.id = ANY ({{ids}})
       ORDER BY spent.id)
