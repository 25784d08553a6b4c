-- audit_over_concurrency: keys whose calls in flight cost more than their concurrency, by a take.
-- Lowering a limit interrupts nothing, so what was taken before the limits last changed proves nothing; but whatever
-- is taken after that finds all in its count. Slots are few, live only while their call is in flight, and are read
-- whole.
WITH {{clock}}, held AS MATERIALIZED (
    SELECT slot.key_id, sum(slot.cost)::bigint AS cost, max(call.dispatched_at) AS dispatched_at
      FROM dispatcher_slot AS slot
      JOIN dispatcher_callqueue AS call ON call.id = slot.call_id AND call.state IN ('dispatched', 'active')
     WHERE slot.key_id IS NOT NULL
     GROUP BY slot.key_id
), limited AS MATERIALIZED (
    SELECT key.id, key.name, held.cost, held.dispatched_at,
           {{limit_in_force(key.override_until > clock.now, key, concurrency)}} AS concurrency,
           {{limited_since(key, clock.now)}} AS since
      FROM clock
     CROSS JOIN held
      JOIN dispatcher_ratelimitkey AS key ON key.id = held.key_id
)
SELECT 'key ' || name AS what, id::text AS target, '' AS version,
       json_build_object('in_flight', cost, 'concurrency', concurrency, 'dispatched_at', dispatched_at,
                         'limited_at', since) AS facts,
       count(*) OVER () AS total
  FROM limited
 WHERE cost > concurrency AND dispatched_at > since + %(slack)s::interval
 ORDER BY name, id
 LIMIT %(most)s::int
