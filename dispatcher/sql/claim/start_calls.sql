-- start_calls: start calls that the caller has admitted in the same transaction, under the locks of their lanes and
-- keys. This is their claim: the start is stamped on the slots and windows, as claim_call does it for one. Left out are
-- calls that were revoked, and those that spend a key with a throttle, whose start claim_call gives. A process may
-- begin by `slack` later than the start: a window remembers it that much longer. Relies on slot_is_one_per_call_and_key
-- and the primary keys. Locks the windows in order of key. The state is a parameter, so that no plan reads the index of
-- all calls in flight.
WITH {{clock}}, spent AS MATERIALIZED (
    SELECT slot.call_id, slot.key_id, slot.cost, {{longest_period(key)}} AS longest,
           {{window_period(key.override_until > clock.now, key)}} AS window_period,
           COALESCE(key.throttle_limit, key.override_throttle_limit) IS NOT NULL AS has_throttle
      FROM clock
     CROSS JOIN dispatcher_slot AS slot
      LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
     WHERE slot.call_id = ANY (%(calls)s::uuid[])
), started AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'active', claim = chosen.claim, started_at = clock.now, attempt = call.attempt + 1, returns = 0,
           published_at = clock.now
      FROM clock, unnest(%(calls)s::uuid[], %(claims)s::uuid[]) AS chosen (id, claim)
     WHERE call.id = ANY (%(calls)s::uuid[]) AND call.id = chosen.id AND call.state = %(admitted)s::text
       AND NOT call.is_revoked
       AND NOT EXISTS (SELECT FROM spent WHERE spent.call_id = chosen.id AND spent.has_throttle)
    RETURNING call.id, call.attempt, call.retry
), held AS (
    UPDATE dispatcher_slot AS slot
       SET started_at = clock.now, lease_until = clock.now + %(lease)s::interval, worker_id = %(worker)s::uuid
      FROM clock, started
     WHERE slot.call_id = started.id
), taken AS MATERIALIZED (
    SELECT spent.key_id, sum(spent.cost) AS cost, spent.window_period, spent.longest
      FROM spent
      JOIN started ON started.id = spent.call_id
     WHERE spent.window_period IS NOT NULL
     GROUP BY spent.key_id, spent.window_period, spent.longest
), counted AS (
    INSERT INTO dispatcher_window AS bucket (key_id, place, cost, last_start_at)
    SELECT key_id, {{window_place(clock.now + %(slack)s::interval)}}, cost, clock.now + %(slack)s::interval
      FROM clock, taken
     ORDER BY key_id
    {{window_upsert(taken)}}
)
SELECT started.id, started.attempt, started.retry, clock.now AS start_at,
       EXISTS (SELECT FROM spent WHERE spent.call_id = started.id AND spent.window_period IS NOT NULL) AS is_counted
  FROM clock
 CROSS JOIN started
