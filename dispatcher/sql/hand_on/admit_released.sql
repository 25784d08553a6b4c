-- admit_released: admit the first call of the lane that lock_released has locked, if every key has room. The plain case
-- alone: a call that costs 1 of each key; keys with a concurrency limit or a window and no pause, block, override,
-- throttle or limit per worker, and no groups; no lane of the queue goes before this one. What it leaves, and what
-- is still open after it, an ordinary pass serves: find_released_room sees it after the commit.
-- The lane parks on the first key of concurrency alone that is full now; it sleeps if it has no more calls (`asleep`:
-- the caller looks again after the commit, see recheck); else it is awake.
-- The queue's bound is that of lone senders, who do not see each other either (`ahead`).
-- The caller holds the locks of the lane and its keys, by an earlier statement: this one's snapshot is younger, so it
-- may count. Rows are found by arrays of their ids, and the state is compared with a parameter, so that no plan that
-- was made of small tables reads them whole.
-- Relies on slot_key, call_waiting, call_in_flight, lane_held, lane_awake, lane_parked and the primary keys.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, NULLIF(current_setting('dispatcher.chosen', true), '')::bigint[] AS lanes,
           NULLIF(current_setting('dispatcher.locked', true), '')::bigint[] AS keys
), mine AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.priority, lane.on_limit, {{keys_of_lane(lane)}} AS key_ids
      FROM clock
     CROSS JOIN dispatcher_lane AS lane
     WHERE lane.id = ANY (clock.lanes)
), lane AS MATERIALIZED (
    SELECT mine.id, mine.key_ids
      FROM clock
     CROSS JOIN mine
     WHERE mine.on_limit = 'wait' AND mine.key_ids <@ clock.keys
       AND {{queue_is_published(mine.queue, clock.now)}}
       AND ({{queue_unclaimed(mine.queue)}}) < %(ahead)s::int
       AND {{first_held_lane(mine.queue)}} IS NULL
       AND (SELECT front.id
              FROM dispatcher_lane AS front
             WHERE front.is_awake AND front.queue = mine.queue AND front.priority > mine.priority
             ORDER BY front.priority DESC, front.queue
             LIMIT 1) IS NULL
       AND NOT EXISTS (
           SELECT
             FROM unnest(clock.keys) AS spent (id)
            WHERE (SELECT front.priority > mine.priority
                     FROM dispatcher_lane AS front
                    WHERE front.parked_on_id = spent.id AND front.queue = mine.queue AND front.id <> mine.id
                    ORDER BY front.priority DESC, front.served_at, front.id
                    LIMIT 1))
), key AS MATERIALIZED (
    SELECT key.id, key.rate_limit IS NULL AND key.opens_at IS NULL AS may_park, key.concurrency - slots.held AS places,
           NOT (key.is_group OR key.is_paused OR key.throttle_limit IS NOT NULL OR key.per_worker IS NOT NULL
                OR key.override_until IS NOT NULL
                OR COALESCE(key.blocked_until > clock.now - %(ramp)s::interval, false))
           AND COALESCE(slots.held < key.concurrency, true)
           AND COALESCE(slots.unstarted + starts.cost < key.rate_limit, true) AS has_room
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(slot.cost), 0) AS held,
                  COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0) AS unstarted
             FROM dispatcher_slot AS slot
            WHERE slot.key_id = key.id AND COALESCE(key.concurrency, key.rate_limit) IS NOT NULL) AS slots
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(bucket.cost), 0) AS cost
             FROM dispatcher_window AS bucket
            WHERE bucket.key_id = key.id AND key.rate_limit IS NOT NULL
              AND clock.now - bucket.last_start_at < key.rate_period + %(margin)s::interval) AS starts
     WHERE key.id = ANY (clock.keys)
), head AS MATERIALIZED (
    SELECT lane.id AS lane_id, lane.key_ids, head.id,
           (SELECT call.id
              FROM dispatcher_callqueue AS call
             WHERE {{waits_in(call, lane.id)}} AND call.position > head.position
             ORDER BY call.position
             LIMIT 1) IS NOT NULL AS has_more
      FROM lane
     CROSS JOIN LATERAL (
           SELECT call.id, call.position, call.costs, call.is_revoked, call.expires_at
             FROM dispatcher_callqueue AS call
            WHERE {{waits_in(call, lane.id)}}
            ORDER BY call.position
            LIMIT 1
              FOR NO KEY UPDATE SKIP LOCKED) AS head
     WHERE NOT EXISTS (SELECT FROM key WHERE NOT key.has_room)
       AND head.costs = '{}' AND NOT head.is_revoked
       AND (head.expires_at IS NULL OR head.expires_at > clock_timestamp())
), admitted AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'dispatched', ticket = gen_random_uuid(), dispatched_at = clock.now, published_at = NULL,
           started_at = NULL, chosen_keys = NULL
      FROM clock, head
     WHERE call.id = ANY (ARRAY(SELECT head.id FROM head)) AND call.id = head.id AND call.state = %(waiting)s::text
    RETURNING {{message_columns(call)}}, head.lane_id, head.key_ids, head.has_more
), slot AS (
    INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
    SELECT admitted.id, spent.key_id, 1, clock.now + %(lease)s::interval
      FROM clock
     CROSS JOIN admitted
     CROSS JOIN LATERAL unnest(admitted.key_ids) AS spent (key_id)
), moved AS (
    UPDATE dispatcher_lane AS lane
       SET served_at = clock.now, is_held = false, is_awake = admitted.has_more AND full_key.id IS NULL,
           parked_on_id = CASE WHEN admitted.has_more THEN full_key.id END
      FROM clock
     CROSS JOIN admitted
      LEFT JOIN LATERAL (
           SELECT min(key.id) AS id FROM key WHERE key.places = 1 AND key.may_park) AS full_key ON true
     WHERE lane.id = ANY (ARRAY(SELECT admitted.lane_id FROM admitted)) AND lane.id = admitted.lane_id
), numbered AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET admissions = key.admissions + 1, chosen_at = clock.now
      FROM clock, admitted
     WHERE key.id = ANY (admitted.key_ids)
)
SELECT id, ticket, task, args, kwargs, call_data, headers, options, queue, attempt, chosen_keys,
       CASE WHEN NOT has_more THEN lane_id END AS asleep
  FROM admitted
