-- opens_at: when time lets a call of this cost start that this key stops, see opening; of a group whose members stop
-- it, the first of these. `p_keys`: what the trip has counted, and taken since.
CREATE FUNCTION @opens_at(p_key @key_room, p_cost bigint, p_keys @key_room[], p_worker uuid, p_tuning @tuning,
    p_now timestamptz) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_at timestamptz := @opening(p_key, p_cost, p_tuning.horizon, p_tuning.margin, p_tuning.ramp, p_now);
BEGIN
  IF v_at IS NULL AND p_key.is_group THEN
    v_at := (SELECT min(@opening(COALESCE(mine, member), p_cost, p_tuning.horizon, p_tuning.margin, p_tuning.ramp,
                                 p_now))
               FROM @room(@members_of(p_key.name), p_worker, p_now, p_tuning.margin, p_tuning.ramp) AS member
               LEFT JOIN unnest(p_keys) AS mine ON mine.id = member.id
              WHERE member.fits >= p_cost);
  END IF;
  RETURN v_at;
END $$;
