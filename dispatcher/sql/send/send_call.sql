-- send_call: write one call that costs 1 of each key and may start now and ever after; if nothing stands in its way,
-- admit it in the same statement.
-- Nothing is written if a key or the lane is missing, or a key has a limit per worker and the broker delivers
-- the queue. For a transaction of its own: it holds its keys to the commit.
-- With any `obstacle` the call waits for an ordinary pass, as all others do. A send never waits for a key that another
-- transaction has locked; a key that is not plain has a throttle, a limit per worker, a pause, a block or an override.
-- It counts by its own snapshot, older than its locks. That is sound since every admission and every change of limits
-- numbers its keys: if a key's number under the lock is the one in the snapshot, what was counted stands.
-- With a key's number it stores how much is in flight under it at the most: until another admission numbers the key,
-- slots only go. So it counts them again when that leaves no room, or after a pass, and not at each send to a hot key.
-- Whether a row is there is asked by ORDER BY and LIMIT, as the index has them: an EXISTS reads a table whole where the
-- statistics say that most rows would do.
-- Relies on the unique indexes of key names and lane kinds, on slot_key, call_waiting, lane_parked, lane_awake,
-- lane_held and call_in_flight.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), seen AS MATERIALIZED (
    SELECT key.id, key.name, key.admissions, key.concurrency, key.rate_limit, key.rate_period,
           COALESCE(key.per_worker, key.override_per_worker) AS per_worker,
           CASE WHEN key.counted_admissions = key.admissions THEN key.most_held END AS most_held,
           CASE WHEN key.counted_admissions = key.admissions THEN key.most_unstarted END AS most_unstarted
      FROM dispatcher_ratelimitkey AS key
     WHERE key.name = ANY (%(names)s::text[] || ('queue:' || %(queue)s::text))
     -- All of them. The planner takes such a limit for one row: without it, the plan for any parameters looks so dear
     -- that each send is planned again, which takes longer than to run it.
     LIMIT cardinality(%(names)s::text[]) + 1
), lane AS MATERIALIZED (
    SELECT lane.id, lane.is_awake OR lane.is_held OR lane.parked_on_id IS NOT NULL AS is_busy
      FROM dispatcher_lane AS lane
     WHERE lane.queue = %(queue)s AND lane.priority = %(priority)s::smallint
       AND lane.on_limit = %(on_limit)s::text
       AND lane.key_ids = ARRAY(SELECT seen.id FROM seen WHERE seen.name = ANY (%(names)s::text[]) ORDER BY seen.id)
       AND cardinality(lane.key_ids) = cardinality(%(names)s::text[])
       AND ({{queue_delivery(%(queue)s)}} <> 'broker'
            OR (SELECT count(seen.id) FROM seen WHERE seen.per_worker IS NOT NULL) = 0)
       -- Against its removal; neither passes nor other senders wait for that.
       FOR KEY SHARE
), locked AS MATERIALIZED (
    SELECT key.id, key.admissions,
           key.throttle_limit IS NULL AND key.per_worker IS NULL AND NOT key.is_paused AND key.override_until IS NULL
           AND (key.blocked_until IS NULL OR key.blocked_until <= clock.now - %(ramp)s::interval) AS is_plain
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
     WHERE key.id IN (SELECT seen.id FROM seen)
     ORDER BY key.id
       FOR NO KEY UPDATE OF key SKIP LOCKED
), used AS MATERIALIZED (
    -- The slots are read only where what is known of them leaves no room: under a hot key they are most of what a send
    -- reads.
    SELECT seen.id, starts.cost AS started,
           CASE WHEN known.is_enough THEN seen.most_held WHEN known.is_limited THEN slots.held END AS held,
           CASE WHEN known.is_enough THEN seen.most_unstarted WHEN known.is_limited THEN slots.unstarted END
           AS unstarted
      FROM clock
     CROSS JOIN seen
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(bucket.cost), 0) AS cost
             FROM dispatcher_window AS bucket
            WHERE bucket.key_id = seen.id AND seen.rate_limit IS NOT NULL
              AND clock.now - bucket.last_start_at < seen.rate_period + %(margin)s::interval) AS starts
     CROSS JOIN LATERAL (
           SELECT COALESCE(seen.concurrency, seen.rate_limit) IS NOT NULL AS is_limited,
                  seen.most_held IS NOT NULL
                  AND (seen.concurrency IS NULL OR seen.most_held < seen.concurrency)
                  AND (seen.rate_limit IS NULL OR seen.most_unstarted + starts.cost < seen.rate_limit) AS is_enough
           ) AS known
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(slot.cost), 0) AS held,
                  COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0) AS unstarted
             FROM dispatcher_slot AS slot
            WHERE slot.key_id = seen.id AND known.is_limited AND NOT known.is_enough) AS slots
), obstacle AS (
    SELECT 'the lane is busy' AS reason FROM lane WHERE lane.is_busy
     UNION ALL
    SELECT 'the queue is not served' FROM clock WHERE NOT ({{queue_is_published(%(queue)s, clock.now)}})
     UNION ALL
    SELECT 'the queue is full' WHERE ({{queue_unclaimed(%(queue)s)}}) >= %(ahead)s
     UNION ALL
    SELECT 'calls wait in the lane'
      FROM lane
     WHERE (SELECT call.id
              FROM dispatcher_callqueue AS call
             WHERE {{waits_in(call, lane.id)}}
             ORDER BY call.position
             LIMIT 1) IS NOT NULL
     UNION ALL
    SELECT 'the queue holds a lane' WHERE {{first_held_lane(%(queue)s)}} IS NOT NULL
     UNION ALL
    SELECT 'a lane of higher priority is awake'
     WHERE (SELECT awake.id
              FROM dispatcher_lane AS awake
             WHERE awake.is_awake AND awake.queue = %(queue)s AND awake.priority > %(priority)s
             ORDER BY awake.priority DESC, awake.queue
             LIMIT 1) IS NOT NULL
     UNION ALL
    SELECT 'a key is locked, changed or not plain'
      FROM seen
      LEFT JOIN locked ON locked.id = seen.id AND locked.is_plain AND locked.admissions = seen.admissions
     WHERE locked.id IS NULL
     UNION ALL
    SELECT 'a lane is parked on a key' FROM seen WHERE {{first_parked_lane(seen.id)}} IS NOT NULL
     UNION ALL
    SELECT 'a key has no room'
      FROM seen
      JOIN used ON used.id = seen.id
     WHERE used.held >= seen.concurrency OR used.unstarted + used.started >= seen.rate_limit
), verdict AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT FROM obstacle) AS goes
), written AS (
    INSERT INTO dispatcher_callqueue
           (id, lane_id, task, args, kwargs, call_data, meta, headers, options, queue, priority, on_limit, costs, state,
            retry, attempt, created_at, errors, ticket, dispatched_at)
    SELECT %(id)s::uuid, lane.id, %(task)s::text, %(args)s::jsonb, %(kwargs)s::jsonb, %(call_data)s::jsonb,
           %(meta)s::jsonb, %(headers)s::jsonb, %(options)s::jsonb, %(queue)s::text, %(priority)s, %(on_limit)s, '{}',
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
       SET admissions = locked.admissions + 1, counted_admissions = locked.admissions + 1,
           most_held = (SELECT used.held + 1 FROM used WHERE used.id = key.id),
           most_unstarted = (SELECT used.unstarted + 1 FROM used WHERE used.id = key.id)
      FROM locked, written
     WHERE key.id = locked.id AND written.state = 'dispatched'
)
SELECT id, position, lane_id, state, created_at, ticket, dispatched_at,
       {{queue_delivery(%(queue)s)}} = 'direct' AS is_direct
  FROM written
