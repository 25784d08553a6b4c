-- costs_of_keys: the cost of each of these keys, in their order; one that the JSON p_costs does not name costs 1.
CREATE FUNCTION @costs_of_keys(p_costs jsonb, p_ids bigint[]) RETURNS int[] LANGUAGE plpgsql AS $$
BEGIN
  RETURN ARRAY(SELECT COALESCE((p_costs ->> spent.name)::int, 1)
                 FROM dispatcher_ratelimitkey AS spent
                WHERE spent.id = ANY (p_ids)
                ORDER BY spent.id);
END $$;
