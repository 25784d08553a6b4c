-- is_member: whether a key with this name belongs to a group: then its last start ranks it among the members. Reads
-- nothing but the empty index key_group where there is no group.
CREATE FUNCTION @is_member(p_name text, p_is_group bool) RETURNS bool LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT NOT p_is_group
           AND (SELECT key.id FROM dispatcher_ratelimitkey AS key
                 WHERE key.is_group ORDER BY key.name LIMIT 1) IS NOT NULL
           AND @groups_of(p_name) <> '{}');
END $$;
