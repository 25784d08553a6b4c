-- tuning: what every trip is given: durations, and how queues are dispatched.
CREATE TYPE @tuning AS (
    horizon interval,         -- how far ahead of its start a throttled call may be taken
    lead interval,            -- how far ahead such a start lies at the least
    slack interval,           -- how much later than its start a process may begin: a window counts that long
    paced_slack interval,     -- the same of a start that a throttle gives: the next one is moved by as much
    margin interval,          -- how much longer than its period a window counts a start
    ramp interval,            -- how long after a block what is in flight grows again
    later interval,           -- when a rescheduled call is tried again whose limit opens at an unknown time
    keep interval,            -- for how long room is kept for a lane whose workers are busy
    silence interval,         -- without heartbeats for so long, a worker is not woken
    notes timestamptz,        -- since when notes are read; NULL: all
    lease interval,           -- of a call that starts
    dispatch_lease interval,  -- of a call that is dispatched
    ahead int,                -- the most calls of a queue that are dispatched and not claimed
    needs_worker bool,        -- whether a queue is dispatched only while a live worker serves it
    any_delivery bool,        -- tasks are eager: queues are dispatched whatever their delivery
    keeps_events bool         -- whether the event log records what limits stop and let go
);
