-- groups_of: the groups that a key with this name belongs to. Relies on key_group.
CREATE FUNCTION @groups_of(p_name text) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT ARRAY(SELECT joined.id
                   FROM dispatcher_ratelimitkey AS joined
                  WHERE joined.is_group
                    AND joined.name = ANY (ARRAY(SELECT left(p_name, place) || '*'
                                                   FROM generate_series(1, length(p_name)) AS place))));
END $$;
