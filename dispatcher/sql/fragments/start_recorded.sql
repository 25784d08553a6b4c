-- start_recorded: the CTEs that record the start of the call of the CTE `claimed` on its slots, windows and
-- throttles. A window and a throttle count it at `latest_at`.
started AS (
    UPDATE dispatcher_slot AS slot
       SET started_at = clock.start_at, lease_until = clock.start_at + %(lease)s::interval, worker_id = %(worker)s::uuid
      FROM claimed, clock
     WHERE slot.call_id = claimed.id
), {{starts_counted(latest_at)}}, spaced AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET last_start_at = clock.latest_at, last_cost = spent.cost
      FROM claimed, clock, paced
      JOIN spent USING (key_id)
     WHERE key.id = paced.key_id AND (paced.last_start_at IS NULL OR paced.last_start_at <= clock.latest_at)
)
