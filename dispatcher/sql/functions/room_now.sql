-- room_now: the cost that may start of a key within the horizon, for any worker: its room, of which a throttle lets as
-- much start as its spacing allows until then.
CREATE FUNCTION @room_now(p_key @key_room, p_horizon interval, p_now timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN p_key.next_at IS NULL THEN p_key.room
            WHEN p_key.next_at > p_now + p_horizon THEN 0
            ELSE LEAST(p_key.room,
                       1 + floor(extract(epoch FROM p_now + p_horizon - p_key.next_at) * p_key.throttle_limit
                                 / extract(epoch FROM p_key.throttle_period)))::bigint END
$$;
