-- hand_over_slots: record how one attempt of a worker ended (see attempts_ended), and start the next call with the
-- slots that it gives back: one statement, where finish_and_choose and start_chosen are two. The case of a full key:
-- the lane that is parked first on the keys spends the same ones; they have concurrency limits alone, and the one on
-- which the lane is parked stays full; nothing else waits for the worker. In every other case (`obstacle`) the end is
-- recorded, nothing starts, and an ordinary step for `keys` follows. The locks are taken within the snapshot that
-- counts. A key whose `admissions` is what the snapshot saw has no slots that it did not see (as in send_call). It may
-- have fewer, and the lane may sleep by now: the caller looks again after the commit (`full_keys`, `asleep`).
-- Locks the call that ended, then, without waiting, the lane, the keys in order of id, and the next call. Relies on
-- slot_key, call_waiting, lane_held, lane_awake, lane_parked, the unique index of slots and the primary keys.
WITH {{clock}}, {{attempts_ended}}, gone AS MATERIALIZED (
    SELECT COALESCE(array_agg(slot.key_id), '{}') AS key_ids, bool_and(slot.cost = 1) AS is_plain
      FROM dispatcher_slot AS slot
     WHERE slot.call_id = ANY (ARRAY(SELECT ended.id FROM ended))
), front AS MATERIALIZED (
    SELECT DISTINCT first.id
      FROM gone
     CROSS JOIN LATERAL unnest(gone.key_ids) AS key (id)
     CROSS JOIN LATERAL (SELECT {{first_parked_lane(key.id)}} AS id) AS first
     WHERE first.id IS NOT NULL
), taken AS MATERIALIZED (
    SELECT mine.id, mine.queue, mine.key_ids, mine.priority, mine.parked_on_id, mine.is_asleep
      FROM front
     CROSS JOIN LATERAL ({{lane_locked(front.id)}}) AS mine
     WHERE (SELECT count(*) FROM front) = 1
), lane AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.priority, lane.parked_on_id, gone.key_ids
      FROM gone
     CROSS JOIN taken AS lane
     WHERE gone.is_plain AND lane.parked_on_id = ANY (gone.key_ids)
       AND lane.queue = ANY (%(queues)s::text[]) AND {{queue_delivery(lane.queue)}} = 'direct'
       AND ({{keys_of_lane(lane)}}) @> gone.key_ids AND ({{keys_of_lane(lane)}}) <@ gone.key_ids
), locked AS MATERIALIZED (
    SELECT key.id, key.admissions, key.concurrency,
           NOT (key.is_group OR key.is_paused)
           AND COALESCE(key.rate_limit, key.throttle_limit, key.per_worker) IS NULL
           AND COALESCE(key.override_until, key.opens_at) IS NULL
           AND COALESCE(key.blocked_until <= clock.now - %(ramp)s::interval, true) AS is_plain
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT unnest(lane.key_ids) FROM lane))
     ORDER BY key.id
       FOR NO KEY UPDATE OF key SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT key.id, key.admissions, slots.held, slots.mine
      FROM dispatcher_ratelimitkey AS key
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(slot.cost), 0) AS held,
                  COALESCE(sum(slot.cost) FILTER (WHERE slot.worker_id = %(worker)s::uuid), 0) AS mine
             FROM dispatcher_slot AS slot
            WHERE slot.key_id = key.id AND key.concurrency IS NOT NULL) AS slots
     WHERE key.id = ANY (ARRAY(SELECT unnest(lane.key_ids) FROM lane))
), head AS MATERIALIZED (
    SELECT head.id, head.is_plain
      FROM lane
     CROSS JOIN LATERAL (
           SELECT call.id,
                  call.costs = '{}' AND NOT call.is_revoked AND call.task = ANY (%(tasks)s::text[])
                  AND (call.expires_at IS NULL OR call.expires_at > clock_timestamp()) AS is_plain
             FROM dispatcher_callqueue AS call
            WHERE {{waits_in(call, lane.id)}}
            ORDER BY call.position
            LIMIT 1
              FOR NO KEY UPDATE SKIP LOCKED) AS head
), obstacle AS (
    SELECT 'a key is locked, changed or not plain' AS reason
      FROM lane
     CROSS JOIN LATERAL unnest(lane.key_ids) AS key (id)
      LEFT JOIN seen ON seen.id = key.id
      LEFT JOIN locked ON locked.id = seen.id AND locked.admissions = seen.admissions AND locked.is_plain
     WHERE locked.id IS NULL
     UNION ALL
    SELECT 'a key holds more than it may, or the lane need not park'
      FROM lane
     CROSS JOIN seen
      JOIN locked ON locked.id = seen.id
     WHERE seen.held > locked.concurrency
        OR (seen.id = lane.parked_on_id AND seen.held IS DISTINCT FROM locked.concurrency)
     UNION ALL
    SELECT 'a group has room' FROM lane CROSS JOIN freed_keys WHERE NOT freed_keys.ids <@ lane.key_ids
     UNION ALL
    SELECT 'the call is not plain' FROM head WHERE NOT head.is_plain
     UNION ALL
    SELECT 'a queue holds a lane'
      FROM unnest(%(queues)s::text[]) AS queue (name)
     WHERE {{first_held_lane(queue.name)}} IS NOT NULL
     UNION ALL
    SELECT 'a lane of higher priority is awake'
      FROM lane
     WHERE (SELECT awake.priority
              FROM dispatcher_lane AS awake
             WHERE awake.is_awake AND awake.queue = lane.queue
             ORDER BY awake.priority DESC, awake.queue
             LIMIT 1) > lane.priority
), goes AS MATERIALIZED (
    SELECT head.id, lane.id AS lane_id, lane.key_ids, gen_random_uuid() AS ticket
      FROM head
     CROSS JOIN lane
     WHERE NOT EXISTS (SELECT FROM obstacle)
), started AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'active', ticket = goes.ticket, claim = gen_random_uuid(), dispatched_at = clock.now,
           published_at = clock.now, started_at = clock.now, attempt = call.attempt + 1, returns = 0
      FROM clock, goes
     WHERE call.id = ANY (ARRAY(SELECT goes.id FROM goes)) AND call.id = goes.id AND call.state = %(waiting)s::text
    RETURNING call.id, call.ticket, call.claim, call.task, call.args, call.kwargs, call.call_data, call.headers,
              call.options, call.queue, call.attempt, call.retry, goes.lane_id, goes.key_ids
), slot AS (
    INSERT INTO dispatcher_slot (call_id, key_id, cost, started_at, lease_until, worker_id)
    SELECT started.id, unnest(started.key_ids), 1, clock.now, clock.now + %(lease)s::interval, %(worker)s::uuid
      FROM clock
     CROSS JOIN started
), numbered AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET admissions = key.admissions + 1
      FROM started
     WHERE key.id = ANY (ARRAY(SELECT unnest(started.key_ids) FROM started))
), settled AS (
    UPDATE dispatcher_lane AS lane
       SET served_at = clock.now
      FROM clock, started
     WHERE lane.id = ANY (ARRAY(SELECT started.lane_id FROM started)) AND lane.id = started.lane_id
)
SELECT clock.now AS start_at, started.id, started.ticket, started.claim, started.task, started.args, started.kwargs,
       started.call_data, started.headers, started.options, started.queue, started.attempt, started.retry,
       started.key_ids, ARRAY(SELECT ended.id FROM ended) AS calls, freed_keys.ids AS freed,
       ARRAY(SELECT taken.id FROM taken WHERE taken.is_asleep) AS asleep,
       ARRAY(SELECT seen.id
               FROM started
              CROSS JOIN seen
               JOIN lane ON lane.parked_on_id = seen.id
              WHERE seen.held > seen.mine) AS full_keys,
       ARRAY(SELECT seen.held
               FROM started
              CROSS JOIN seen
               JOIN lane ON lane.parked_on_id = seen.id
              WHERE seen.held > seen.mine)::bigint[] AS full_held
  FROM clock
 CROSS JOIN freed_keys
  LEFT JOIN started ON true
