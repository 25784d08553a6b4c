-- members_of: the keys that a group with this name may choose. No character of a name comes after `~`. Relies on the
-- index of key names by character.
CREATE FUNCTION @members_of(p_name text) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT ARRAY(SELECT member.id
                   FROM dispatcher_ratelimitkey AS member
                  WHERE member.name ~>=~ rtrim(p_name, '*') AND member.name ~<~ (rtrim(p_name, '*') || '~')
                    AND NOT member.is_group));
END $$;
