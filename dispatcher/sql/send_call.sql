-- send_call: write one call and, if nothing stands in its way, admit it in the same statement.
-- Nothing is written if a key or the lane is missing. For a transaction of its own: it holds its keys to the commit.
-- In the way are: a time to wait for, calls that wait already, a key with a throttle, a pause, a block, an override,
-- lanes parked or too little room; the call then waits for an ordinary pass, as all others do.
-- It counts by its own snapshot, older than its locks. That is sound since every admission numbers its keys: if a
-- key's number under the lock is the one in the snapshot, nobody has admitted since, and what was counted stands.
-- Relies on the unique indexes of key names and lane kinds, on slot_key, call_waiting, lane_parked and lane_awake.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), seen AS MATERIALIZED (
    SELECT key.id, key.name, key.admissions, key.concurrency, key.rate_limit, key.rate_period,
           COALESCE((%(costs)s::jsonb ->> key.name)::int, 1) AS cost
      FROM dispatcher_ratelimitkey AS key
     WHERE key.name = ANY (%(names)s::text[] || ('queue:' || %(queue)s::text))
), lane AS MATERIALIZED (
    SELECT lane.id, lane.is_awake, lane.parked_on_id
      FROM dispatcher_lane AS lane
     WHERE lane.queue = %(queue)s::text AND lane.priority = %(priority)s::smallint
       AND lane.on_limit = %(on_limit)s::text
       AND lane.key_ids = ARRAY(SELECT seen.id FROM seen WHERE seen.name = ANY (%(names)s::text[]) ORDER BY seen.id)
       AND cardinality(lane.key_ids) = cardinality(%(names)s::text[])
), awake AS MATERIALIZED (
    -- On its own and in the order of its index: few lanes are awake, however many of the queue there are.
    SELECT lane.queue, lane.priority
      FROM dispatcher_lane AS lane
     WHERE lane.is_awake
     ORDER BY lane.priority DESC, lane.queue
), locked AS MATERIALIZED (
    SELECT key.id, key.admissions, key.concurrency, key.rate_limit, key.rate_period,
           key.throttle_limit IS NULL AND NOT key.is_paused AND key.override_until IS NULL
           AND (key.blocked_until IS NULL OR key.blocked_until <= clock.now) AS is_plain
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
     WHERE key.id IN (SELECT seen.id FROM seen) AND %(is_now)s::bool
     ORDER BY key.id
       FOR NO KEY UPDATE OF key
), verdict AS MATERIALIZED (
    SELECT %(is_now)s::bool AND NOT lane.is_awake AND lane.parked_on_id IS NULL
           AND NOT EXISTS (SELECT
                             FROM dispatcher_callqueue AS call
                            WHERE call.lane_id = lane.id AND call.state = 'available')
           AND NOT EXISTS (SELECT
                             FROM awake
                            WHERE awake.queue = %(queue)s::text AND awake.priority > %(priority)s::smallint)
           AND NOT EXISTS (
               SELECT
                 FROM seen
                 LEFT JOIN locked
                   ON locked.id = seen.id AND locked.is_plain AND locked.admissions = seen.admissions
                  AND (locked.concurrency, locked.rate_limit, locked.rate_period)
                      IS NOT DISTINCT FROM (seen.concurrency, seen.rate_limit, seen.rate_period)
                WHERE locked.id IS NULL
                   -- In the order of its index, or the planner would look for one lane by reading all.
                   OR (SELECT ahead.id
                         FROM dispatcher_lane AS ahead
                        WHERE ahead.parked_on_id = seen.id
                        ORDER BY ahead.priority DESC, ahead.served_at, ahead.id
                        LIMIT 1) IS NOT NULL
                   OR seen.cost + (SELECT COALESCE(sum(slot.cost), 0)
                                     FROM dispatcher_slot AS slot
                                    WHERE slot.key_id = seen.id AND seen.concurrency IS NOT NULL) > seen.concurrency
                   OR seen.cost + (SELECT COALESCE(sum(slot.cost), 0)
                                     FROM dispatcher_slot AS slot
                                    WHERE slot.key_id = seen.id AND slot.started_at IS NULL
                                      AND seen.rate_limit IS NOT NULL)
                                + (SELECT COALESCE(sum(bucket.cost), 0)
                                     FROM dispatcher_window AS bucket
                                    WHERE bucket.key_id = seen.id
                                      AND bucket.last_start_at > clock.now - seen.rate_period - %(margin)s::interval)
                      > seen.rate_limit) AS goes
      FROM lane
     CROSS JOIN clock
), written AS (
    INSERT INTO dispatcher_callqueue
           (id, lane_id, task, args, kwargs, call_data, meta, queue, priority, on_limit, costs, state, retry,
            scheduled_at, expires_at, attempt, created_at, errors, ticket, dispatched_at)
    SELECT %(id)s::uuid, lane.id, %(task)s::text, %(args)s::jsonb, %(kwargs)s::jsonb, %(call_data)s::jsonb,
           %(meta)s::jsonb, %(queue)s::text, %(priority)s::smallint, %(on_limit)s::text, %(costs)s::jsonb,
           CASE WHEN verdict.goes THEN 'dispatched'
                WHEN %(scheduled_at)s::timestamptz > clock.now THEN 'scheduled'
                ELSE 'available' END,
           %(retry)s::jsonb, %(scheduled_at)s::timestamptz, %(expires_at)s::timestamptz, 0, clock.now, '[]',
           CASE WHEN verdict.goes THEN gen_random_uuid() END, CASE WHEN verdict.goes THEN clock.now END
      FROM lane
     CROSS JOIN clock
     CROSS JOIN verdict
    RETURNING id, position, lane_id, state, created_at, ticket, dispatched_at
), held AS (
    INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
    SELECT written.id, seen.id, COALESCE(seen.cost, 1), clock.now + %(lease)s::interval
      FROM written
     CROSS JOIN clock
      LEFT JOIN seen ON true
     WHERE written.state = 'dispatched'
), numbered AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET admissions = locked.admissions + 1
      FROM locked, written
     WHERE key.id = locked.id AND written.state = 'dispatched'
)
SELECT id, position, lane_id, state, created_at, ticket, dispatched_at
  FROM written
