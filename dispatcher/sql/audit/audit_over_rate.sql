-- audit_over_rate: keys of whose window a trip took more than the rate limit.
-- Judged for the latest trips whose calls are still in flight: what each must have counted, and can't have been
-- less, is the starts in the window before it, the slots that have not started even now, and its own. Starts since are
-- left out: one that came too late was given up for another, and both are in the window. Relies on start_key.
WITH {{clock}}, moment AS MATERIALIZED (
    SELECT slot.key_id, call.dispatched_at AS at,
           COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0) AS unstarted,
           COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NOT NULL), 0) AS started
      FROM dispatcher_slot AS slot
      JOIN dispatcher_callqueue AS call ON call.id = slot.call_id AND call.state IN ('dispatched', 'active')
     WHERE slot.key_id IS NOT NULL
     GROUP BY slot.key_id, call.dispatched_at
), trip AS MATERIALIZED (
    SELECT key_id, at, started + sum(unstarted) OVER (PARTITION BY key_id ORDER BY at) AS reserved,
           row_number() OVER (PARTITION BY key_id ORDER BY at DESC) AS place
      FROM moment
), limited AS MATERIALIZED (
    SELECT key.id, key.name, trip.at, trip.reserved,
           {{limit_in_force(key.override_until > clock.now, key, rate_limit)}} AS rate_limit,
           {{limit_in_force(key.override_until > clock.now, key, rate_period)}} AS rate_period,
           {{limited_since(key, clock.now)}} AS since
      FROM clock
     CROSS JOIN trip
      JOIN dispatcher_ratelimitkey AS key ON key.id = trip.key_id
     WHERE trip.place <= 5
), spent AS MATERIALIZED (
    SELECT DISTINCT ON (limited.id) limited.id, limited.name, limited.at, limited.rate_limit, limited.rate_period,
           limited.since, limited.reserved + earlier.cost AS cost
      FROM limited
     CROSS JOIN LATERAL (
           SELECT COALESCE(sum(start.cost), 0) AS cost
             FROM dispatcher_start AS start
            WHERE start.key_id = limited.id AND start.at > limited.at - limited.rate_period
              AND start.at <= limited.at - %(margin)s::interval) AS earlier
     WHERE limited.rate_limit IS NOT NULL AND limited.at > limited.since + %(slack)s::interval
     ORDER BY limited.id, limited.reserved + earlier.cost DESC
)
SELECT 'key ' || name AS what, id::text AS target, '' AS version,
       json_build_object('spent', cost, 'rate_limit', rate_limit, 'rate_period', rate_period, 'started_at', at,
                         'limited_at', since) AS facts,
       count(*) OVER () AS total
  FROM spent
 WHERE cost > rate_limit
 ORDER BY name, id
 LIMIT %(most)s::int
