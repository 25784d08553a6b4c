-- send_call: write one call that costs 1 of each key and may start now and ever after; if nothing stands in its way,
-- admit it in the same statement.
-- Nothing is written if a key or the lane is missing. For a transaction of its own: it holds its keys to the commit.
-- In the way are: calls that wait already, a key with a throttle, a pause, a block, an override, lanes parked or too
-- little room, a queue without workers, or whose calls are fetched over HTTP, or with as many calls on their way as `ahead` allows; the
-- call then waits for an ordinary pass, as all others do.
-- It counts by its own snapshot, older than its locks. That is sound since every admission and every change of limits
-- numbers its keys: if a key's number under the lock is the one in the snapshot, what was counted stands.
-- Relies on the unique indexes of key names and lane kinds, on slot_key, call_waiting, lane_parked, lane_awake, lane_held
-- and call_in_flight.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), seen AS MATERIALIZED (
    SELECT key.id, key.name, key.admissions, key.concurrency, key.rate_limit, key.rate_period
      FROM dispatcher_ratelimitkey AS key
     WHERE key.name = ANY (%(names)s::text[] || ('queue:' || %(queue)s::text))
), lane AS MATERIALIZED (
    SELECT lane.id, lane.is_awake OR lane.is_held OR lane.parked_on_id IS NOT NULL AS is_busy
      FROM dispatcher_lane AS lane
     WHERE lane.queue = %(queue)s AND lane.priority = %(priority)s::smallint
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
    SELECT key.id, key.admissions, key.throttle_limit IS NULL AND NOT key.is_paused AND key.override_until IS NULL
                                   AND (key.blocked_until IS NULL OR key.blocked_until <= clock.now - %(ramp)s::interval) AS is_plain
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
     WHERE key.id IN (SELECT seen.id FROM seen)
     ORDER BY key.id
       FOR NO KEY UPDATE OF key
), verdict AS MATERIALIZED (
    SELECT NOT lane.is_busy
           AND NOT EXISTS (SELECT FROM dispatcher_queue WHERE name = %(queue)s AND is_pulled)
           AND (NOT %(is_gated)s::bool OR EXISTS (SELECT
                                                    FROM dispatcher_worker AS worker
                                                   WHERE %(queue)s = ANY (worker.queues) AND worker.serves_until > clock.now))
           AND (SELECT count(*)
                  FROM (SELECT
                          FROM dispatcher_callqueue AS call
                         WHERE call.queue = %(queue)s AND call.state = 'dispatched'
                         LIMIT %(ahead)s::int) AS call) < %(ahead)s
           AND NOT EXISTS (SELECT
                             FROM dispatcher_callqueue AS call
                            WHERE call.lane_id = lane.id AND call.state = 'available')
           AND NOT EXISTS (SELECT
                             FROM dispatcher_lane AS held
                            WHERE held.is_held AND held.queue = %(queue)s)
           AND NOT EXISTS (SELECT
                             FROM awake
                            WHERE awake.queue = %(queue)s AND awake.priority > %(priority)s)
           AND NOT EXISTS (
               SELECT
                 FROM seen
                 LEFT JOIN locked ON locked.id = seen.id AND locked.is_plain AND locked.admissions = seen.admissions
                CROSS JOIN LATERAL (
                      -- Once for both limits: under a hot key this is most of what a send reads.
                      SELECT COALESCE(sum(slot.cost), 0) AS held,
                             COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0) AS unstarted
                        FROM dispatcher_slot AS slot
                       WHERE slot.key_id = seen.id AND COALESCE(seen.concurrency, seen.rate_limit) IS NOT NULL) AS slots
                WHERE locked.id IS NULL
                   -- In the order of its index, or the planner would look for one lane by reading all.
                   OR (SELECT ahead.id
                         FROM dispatcher_lane AS ahead
                        WHERE ahead.parked_on_id = seen.id
                        ORDER BY ahead.priority DESC, ahead.served_at, ahead.id
                        LIMIT 1) IS NOT NULL
                   OR slots.held >= seen.concurrency
                   OR slots.unstarted
                      + (SELECT COALESCE(sum(bucket.cost), 0)
                           FROM dispatcher_window AS bucket
                          WHERE bucket.key_id = seen.id
                            AND bucket.last_start_at > clock.now - seen.rate_period - %(margin)s::interval)
                      >= seen.rate_limit) AS goes
      FROM lane
     CROSS JOIN clock
), written AS (
    INSERT INTO dispatcher_callqueue
           (id, lane_id, task, args, kwargs, call_data, meta, queue, priority, on_limit, costs, state, retry,
            attempt, created_at, errors, ticket, dispatched_at)
    SELECT %(id)s::uuid, lane.id, %(task)s::text, %(args)s::jsonb, %(kwargs)s::jsonb, %(call_data)s::jsonb,
           %(meta)s::jsonb, %(queue)s::text, %(priority)s, %(on_limit)s, '{}',
           CASE WHEN verdict.goes THEN 'dispatched' ELSE 'available' END, %(retry)s::jsonb, 0, clock.now, '[]',
           CASE WHEN verdict.goes THEN gen_random_uuid() END, CASE WHEN verdict.goes THEN clock.now END
      FROM lane
     CROSS JOIN clock
     CROSS JOIN verdict
    RETURNING id, position, lane_id, state, created_at, ticket, dispatched_at
), held AS (
    INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
    SELECT written.id, seen.id, 1, clock.now + %(lease)s::interval
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
