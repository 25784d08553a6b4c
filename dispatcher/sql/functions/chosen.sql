-- chosen: what a trip has decided.
CREATE TYPE @start AS (
    call uuid,
    at timestamptz,
    state text,
    chosen jsonb,             -- the member of each group
    key_ids bigint[],         -- the keys that it spends; NULL: none
    costs int[],
    is_counted bool           -- whether a window counts it
);
CREATE TYPE @fate AS (call uuid, fate text, at timestamptz, key_id bigint, cost int, queue text);
CREATE TYPE @move AS (lane bigint, place bigint, served_at timestamptz, kept_until timestamptz, stopped uuid,
    is_turn bool,             -- served_at is its turn on a fair key
    queue text                -- that of the call that was stopped
);
CREATE TYPE @pending AS (at timestamptz, lane_id bigint, key_id bigint);
CREATE TYPE @chosen AS (
    starts @start[],
    fates @fate[],
    served bigint[],          -- lanes in the order in which calls of theirs started last
    moves @move[],            -- lanes that do not go on, and the call of each that a limit stopped
    notes @pending[],
    wake uuid[],
    keys @key_room[],
    counts bool,              -- whether starts of any key are recorded
    counted @key_room[],      -- starts of the trip that are earlier than the last of their key
    open bigint[],            -- keys to look at, and those that stopped a lane
    room_left int,
    publish_left int[],       -- of the queues whose calls may be published (see found)
    lines @line[]             -- what shares have got of fair keys (see shares)
);
