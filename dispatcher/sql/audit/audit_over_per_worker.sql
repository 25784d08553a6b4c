-- audit_over_per_worker: keys of which one worker holds more than one worker may, by a start.
-- Lowering a limit interrupts nothing, so what started before the limits last changed proves nothing (see
-- audit_over_concurrency). Slots are few, live only while their call is in flight, and are read whole.
WITH {{clock}}, held AS MATERIALIZED (
    SELECT slot.key_id, slot.worker_id, sum(slot.cost)::bigint AS cost, max(slot.started_at) AS started_at
      FROM dispatcher_slot AS slot
     WHERE slot.key_id IS NOT NULL AND slot.worker_id IS NOT NULL
     GROUP BY slot.key_id, slot.worker_id
), limited AS MATERIALIZED (
    SELECT key.id, key.name, held.worker_id, held.cost, held.started_at,
           {{limit_in_force(key.override_until > clock.now, key, per_worker)}} AS per_worker,
           {{limited_since(key, clock.now)}} AS since
      FROM clock
     CROSS JOIN held
      JOIN dispatcher_ratelimitkey AS key ON key.id = held.key_id
)
SELECT 'key ' || name AS what, id::text AS target, '' AS version,
       json_build_object('worker', worker_id, 'in_flight', cost, 'per_worker', per_worker, 'started_at', started_at,
                         'limited_at', since) AS facts,
       count(*) OVER () AS total
  FROM limited
 WHERE cost > per_worker AND started_at > since + %(slack)s::interval
 ORDER BY name, id, worker_id
 LIMIT %(most)s::int
