-- chosen_started(heads, able, due, shares): the statement start_chosen, with its calls in the order of `due`.
-- `heads` and `able`: the CTEs that have the column `due`; those that are not named cost nothing.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, NULLIF(current_setting('dispatcher.chosen', true), '')::bigint[] AS lanes,
           NULLIF(current_setting('dispatcher.locked', true), '')::bigint[] AS keys
), lane AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.priority, lane.on_limit, lane.served_at, lane.is_held, lane.parked_on_id,
           lane.key_ids || own.ids AS key_ids,
           own.ids <@ clock.keys
           AND COALESCE((SELECT front.priority
                           FROM dispatcher_lane AS front
                          WHERE front.is_held AND front.queue = lane.queue
                            AND front.id <> ALL (clock.lanes) AND NOT front.key_ids && %(avoid)s::bigint[]
                          ORDER BY front.priority DESC, front.served_at, front.id
                          LIMIT 1) <= lane.priority, true)
           AND COALESCE((SELECT front.priority
                           FROM dispatcher_lane AS front
                          WHERE front.is_awake AND front.queue = lane.queue AND front.id <> ALL (clock.lanes)
                          ORDER BY front.priority DESC, front.queue
                          LIMIT 1) <= lane.priority, true)
           AND NOT EXISTS (
               SELECT
                 FROM unnest(lane.key_ids || own.ids) AS spent (id)
                WHERE (SELECT front.priority > lane.priority
                         FROM dispatcher_lane AS front
                        WHERE front.parked_on_id = spent.id AND front.id <> ALL (clock.lanes)
                        ORDER BY front.priority DESC, front.served_at, front.id
                        LIMIT 1)) AS is_first
      FROM clock
     CROSS JOIN dispatcher_lane AS lane
     CROSS JOIN LATERAL (
           SELECT ARRAY(SELECT key.id
                          FROM dispatcher_ratelimitkey AS key
                         WHERE key.name = 'queue:' || lane.queue) AS ids) AS own
     WHERE lane.id = ANY (clock.lanes)
), key AS MATERIALIZED (
    SELECT key.id, key.rate_period AS window_period, {{longest_period(key)}} AS longest, key.concurrency,
           %(may_park)s::bool AND key.rate_limit IS NULL AND key.opens_at IS NULL AS may_park, slots.held, slots.mine,
           CASE WHEN key.per_worker IS NULL THEN 2147483647
                WHEN %(worker)s::uuid IS NULL THEN 0
                ELSE key.per_worker - slots.of_worker END AS worker_room,
           CASE WHEN key.is_group OR key.is_paused OR key.throttle_limit IS NOT NULL OR key.override_until IS NOT NULL
                     OR key.blocked_until > clock.now - %(ramp)s::interval THEN NULL
                ELSE LEAST(COALESCE(key.concurrency - slots.held, 2147483647),
                           COALESCE(key.rate_limit - slots.unstarted - starts.cost, 2147483647)) END AS room
      FROM clock
     CROSS JOIN dispatcher_ratelimitkey AS key
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(slot.cost), 0) AS held,
                  COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0) AS unstarted,
                  COALESCE(sum(slot.cost)
                           FILTER (WHERE slot.worker_id = %(worker)s::uuid AND NOT %(is_fetch)s::bool), 0) AS mine,
                  COALESCE(sum(slot.cost) FILTER (WHERE slot.worker_id = %(worker)s::uuid), 0) AS of_worker
             FROM dispatcher_slot AS slot
            WHERE slot.key_id = key.id
              AND COALESCE(key.concurrency, key.rate_limit, key.per_worker) IS NOT NULL) AS slots
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(bucket.cost), 0) AS cost
             FROM dispatcher_window AS bucket
            WHERE bucket.key_id = key.id AND key.rate_limit IS NOT NULL
              AND clock.now - bucket.last_start_at < key.rate_period + %(margin)s::interval) AS starts
     WHERE key.id = ANY (clock.keys)
), head AS MATERIALIZED (
    SELECT lane.id AS lane_id, lane.queue, lane.key_ids, lane.priority, lane.served_at, head.id, head.turn,
           lane.is_first AND head.is_plain
           AND NOT EXISTS (SELECT FROM key WHERE key.id = ANY (lane.key_ids) AND key.room IS NULL) AS is_plain
      FROM lane
     CROSS JOIN LATERAL (
           SELECT front.id, row_number() OVER (ORDER BY front.position) AS turn, front.is_plain
             FROM (SELECT call.id, call.position,
                          call.costs = '{}' AND NOT call.is_revoked
                          AND (%(tasks)s::text[] IS NULL OR call.task = ANY (%(tasks)s::text[]))
                          AND (call.expires_at IS NULL OR call.expires_at > clock_timestamp()) AS is_plain
                     FROM dispatcher_callqueue AS call
                    WHERE {{waits_in(call, lane.id)}}
                    ORDER BY call.position
                    LIMIT %(room)s::int + 1
                      FOR NO KEY UPDATE SKIP LOCKED) AS front) AS head
), plain AS NOT MATERIALIZED (
    SELECT head.id, head.lane_id, head.queue, head.key_ids, head.priority, head.turn, head.served_at
      FROM head
     WHERE head.is_plain
), weighted_plain AS MATERIALIZED (
    {{by_weight(plain, {{shares}})}}
), demand AS MATERIALIZED (
    SELECT head.id, spent.key_id,
           row_number() OVER (PARTITION BY spent.key_id
                              ORDER BY head.priority DESC, {{due}}, head.turn, head.served_at, head.lane_id)
           > LEAST(key.room, key.worker_room) AS is_over
      FROM {{heads}} AS head
     CROSS JOIN LATERAL unnest(head.key_ids) AS spent (key_id)
      JOIN key ON key.id = spent.key_id
), able AS NOT MATERIALIZED (
    SELECT head.id, head.lane_id, head.queue, head.key_ids, head.priority, head.turn, head.served_at
      FROM head
     WHERE head.is_plain AND head.id NOT IN (SELECT demand.id FROM demand WHERE demand.is_over)
       AND NOT EXISTS (SELECT FROM head AS before
                        WHERE before.lane_id = head.lane_id AND before.turn < head.turn AND NOT before.is_plain)
       AND ({{shares}} IS NULL OR NOT EXISTS (SELECT FROM head AS other WHERE NOT other.is_plain))
), weighted_able AS MATERIALIZED (
    -- Calls that a key stops take no turns of their queue.
    {{by_weight(able, {{shares}})}}
), goes AS MATERIALIZED (
    SELECT head.id, head.lane_id, head.key_ids, head.turn, gen_random_uuid() AS ticket,
           row_number() OVER (ORDER BY head.priority DESC, {{due}}, head.turn, head.served_at, head.lane_id) AS place
      FROM {{able}} AS head
     ORDER BY place
     LIMIT %(room)s::int
), started AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'active', ticket = goes.ticket,
           claim = CASE WHEN %(is_fetch)s::bool THEN goes.ticket ELSE gen_random_uuid() END, dispatched_at = clock.now,
           published_at = clock.now, started_at = clock.now, attempt = call.attempt + 1, returns = 0
      FROM clock, goes
     WHERE call.id = ANY (ARRAY(SELECT goes.id FROM goes)) AND call.id = goes.id AND call.state = %(waiting)s::text
    RETURNING call.id, call.ticket, call.claim, call.task, call.args, call.kwargs, call.call_data, call.headers,
              call.options, call.queue, call.attempt, call.retry, goes.place, goes.lane_id, goes.key_ids
), slot AS (
    INSERT INTO dispatcher_slot (call_id, key_id, cost, started_at, lease_until, pulled_until, worker_id)
    SELECT started.id, spent.key_id, 1, clock.now, clock.now + %(lease)s::interval,
           CASE WHEN %(is_fetch)s::bool THEN clock.now + %(lease)s::interval END, %(worker)s::uuid
      FROM clock
     CROSS JOIN started
      LEFT JOIN LATERAL unnest(started.key_ids) AS spent (key_id) ON true
), taken AS MATERIALIZED (
    SELECT key.id AS key_id, count(*) AS cost, key.window_period, key.longest
      FROM goes
     CROSS JOIN LATERAL unnest(goes.key_ids) AS spent (key_id)
      JOIN key ON key.id = spent.key_id
     GROUP BY key.id, key.window_period, key.longest
), counted AS (
    INSERT INTO dispatcher_window AS bucket (key_id, place, cost, last_start_at)
    SELECT key_id, {{window_place(clock.now + %(slack)s::interval)}}, cost, clock.now + %(slack)s::interval
      FROM clock, taken
     WHERE window_period IS NOT NULL
     ORDER BY key_id
    {{window_upsert(taken)}}
), numbered AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET admissions = key.admissions + 1
      FROM taken
     WHERE key.id = ANY (ARRAY(SELECT taken.key_id FROM taken)) AND key.id = taken.key_id
), settling AS MATERIALIZED (
    SELECT lane.id, lane.is_held, lane.parked_on_id, lane.on_limit, lane.is_first, ahead.place, heads.count,
           goes.count AS gone,
           (SELECT key.id
              FROM key
              LEFT JOIN taken ON taken.key_id = key.id
             WHERE key.id = ANY (lane.key_ids) AND key.may_park AND key.room <= COALESCE(taken.cost, 0)
               AND key.concurrency IS NOT NULL
             ORDER BY key.id
             LIMIT 1) AS full_key,
           ARRAY(SELECT key.id
                   FROM key
                   LEFT JOIN taken ON taken.key_id = key.id
                  WHERE key.id = ANY (lane.key_ids) AND key.worker_room <= COALESCE(taken.cost, 0)
                  ORDER BY key.id) AS reached_keys,
           EXISTS (SELECT
                     FROM key
                     LEFT JOIN taken ON taken.key_id = key.id
                    WHERE key.id = ANY (lane.key_ids) AND key.room <= COALESCE(taken.cost, 0)) AS is_stopped,
           COALESCE(heads.is_plain, true) AS is_plain
      FROM lane
     CROSS JOIN LATERAL (
           SELECT count(*) AS count, bool_and(head.is_plain) AS is_plain
             FROM head
            WHERE head.lane_id = lane.id) AS heads
     CROSS JOIN LATERAL (SELECT count(*) AS count FROM goes WHERE goes.lane_id = lane.id) AS goes
     CROSS JOIN LATERAL (SELECT max(goes.place) AS place FROM goes WHERE goes.lane_id = lane.id) AS ahead
), decided AS MATERIALIZED (
    SELECT settling.id, settling.place, settling.is_held, settling.parked_on_id,
           CASE WHEN settling.count = 0 THEN 'asleep'
                WHEN settling.gone >= settling.count
                THEN CASE WHEN settling.count <= %(room)s::int
                               AND (%(is_fetch)s::bool OR (SELECT count(*) FROM goes) < %(room)s::int) THEN 'asleep'
                          ELSE 'held' END
                WHEN NOT settling.is_plain THEN 'left'
                WHEN settling.full_key IS NOT NULL AND settling.on_limit = 'wait' THEN 'parked'
                WHEN settling.reached_keys <> '{}' AND NOT settling.is_stopped THEN 'reached'
                WHEN settling.gone > 0 AND (SELECT count(*) FROM goes) >= %(room)s::int THEN 'held'
                ELSE 'left' END AS becomes,
           settling.full_key, settling.reached_keys
      FROM settling
), settled AS (
    UPDATE dispatcher_lane AS lane
       SET served_at = CASE WHEN decided.place IS NULL THEN lane.served_at
                            ELSE clock.now + decided.place * interval '1 microsecond' END,
           is_awake = false, is_held = decided.becomes IN ('held', 'left', 'reached'),
           parked_on_id = CASE WHEN decided.becomes = 'parked' THEN decided.full_key END
      FROM clock, decided
     WHERE lane.id = ANY (ARRAY(SELECT decided.id FROM decided)) AND lane.id = decided.id
       AND (decided.place IS NOT NULL OR lane.is_awake
            OR decided.is_held <> (decided.becomes IN ('held', 'left', 'reached'))
            OR decided.parked_on_id IS DISTINCT FROM CASE WHEN decided.becomes = 'parked' THEN decided.full_key END)
)
SELECT clock.now AS start_at, started.id, started.ticket, started.claim, started.task, started.args, started.kwargs,
       started.call_data, started.headers, started.options, started.queue, started.attempt, started.retry,
       started.key_ids,
       (SELECT decided.becomes = 'parked' FROM decided WHERE decided.id = started.lane_id) AS is_followed,
       ARRAY(SELECT decided.id FROM decided WHERE decided.becomes = 'asleep') AS asleep,
       (SELECT count(*) FROM decided WHERE decided.becomes = 'left') AS left_lanes,
       ARRAY(SELECT decided.id FROM decided WHERE decided.becomes = 'parked') AS parked,
       ARRAY(SELECT DISTINCT key.id FROM decided JOIN key ON key.id = decided.full_key
              WHERE decided.becomes = 'parked' AND key.held > key.mine ORDER BY key.id) AS full_keys,
       ARRAY(SELECT DISTINCT ON (key.id) key.held + COALESCE(taken.cost, 0)
               FROM decided
               JOIN key ON key.id = decided.full_key
               LEFT JOIN taken ON taken.key_id = key.id
              WHERE decided.becomes = 'parked' AND key.held > key.mine ORDER BY key.id)::bigint[] AS full_held,
       ARRAY(SELECT key.id
               FROM key
               LEFT JOIN taken ON taken.key_id = key.id
              WHERE key.room > COALESCE(taken.cost, 0)
                AND (SELECT front.id
                       FROM dispatcher_lane AS front
                      WHERE front.parked_on_id = key.id AND front.id <> ALL (clock.lanes)
                      ORDER BY front.priority DESC, front.served_at, front.id
                      LIMIT 1) IS NOT NULL) AS open_keys,
       ARRAY(SELECT DISTINCT unnest(decided.reached_keys)
               FROM decided
              WHERE decided.becomes = 'reached') AS reached_keys,
       EXISTS (SELECT FROM taken WHERE taken.window_period IS NOT NULL) AS is_counted
  FROM clock
  LEFT JOIN started ON true
 ORDER BY started.place
