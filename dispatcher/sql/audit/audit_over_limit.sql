-- audit_over_limit: keys of which more was taken than a limit allows that was in force before. Lowering one interrupts
-- nothing, so what was taken or started before the limits last changed proves nothing; but whatever is taken after that
-- finds all in its count. `why`:
-- concurrency: what is in flight costs more, by a take;
-- per_worker: one worker holds more, by a start;
-- rate: a trip took more of the window. Judged for the latest trips whose calls are still in flight: what each must
-- have counted, and can't have been less, is the starts in the window before it, the slots that have not started even
-- now, and its own. Starts since are left out: one that came too late was given up for another, and both are in the
-- window;
-- throttle: consecutive starts of running calls are closer.
-- Limits in force are read by the function room. Slots are few, live only while their call is in flight, and are read
-- whole. Relies on start_key.
WITH {{clock}}, flown AS MATERIALIZED (
    SELECT slot.id, slot.key_id, slot.call_id, slot.worker_id, slot.cost, slot.started_at, call.dispatched_at
      FROM dispatcher_slot AS slot
      JOIN dispatcher_callqueue AS call ON call.id = slot.call_id AND call.state IN ('dispatched', 'active')
     WHERE slot.key_id IS NOT NULL
), limited AS MATERIALIZED (
    SELECT force.id, force.name, force.concurrency, force.per_worker, force.rate_limit, force.rate_period,
           force.throttle_limit, force.throttle_period, key.limited_at,
           GREATEST(key.limited_at, CASE WHEN key.override_until <= clock.now THEN key.override_until END)
           + %(slack)s::interval AS since
      FROM clock
     CROSS JOIN {{@room}}(ARRAY(SELECT DISTINCT flown.key_id FROM flown), NULL, clock.now, %(margin)s::interval,
                          %(ramp)s::interval) AS force
     CROSS JOIN LATERAL (
           SELECT stored.limited_at, stored.override_until
             FROM dispatcher_ratelimitkey AS stored
            WHERE stored.id = force.id
            LIMIT 1) AS key
), held AS MATERIALIZED (
    SELECT flown.key_id, flown.worker_id, GROUPING(flown.worker_id) = 1 AS is_all, sum(flown.cost)::bigint AS cost,
           max(flown.dispatched_at) AS dispatched_at, max(flown.started_at) AS started_at
      FROM flown
     GROUP BY GROUPING SETS ((flown.key_id), (flown.key_id, flown.worker_id))
), trip AS MATERIALIZED (
    SELECT key_id, at, started + sum(unstarted) OVER (PARTITION BY key_id ORDER BY at) AS reserved,
           row_number() OVER (PARTITION BY key_id ORDER BY at DESC) AS place
      FROM (SELECT flown.key_id, flown.dispatched_at AS at,
                   COALESCE(sum(flown.cost) FILTER (WHERE flown.started_at IS NULL), 0) AS unstarted,
                   COALESCE(sum(flown.cost) FILTER (WHERE flown.started_at IS NOT NULL), 0) AS started
              FROM flown
             GROUP BY flown.key_id, flown.dispatched_at) AS taken
), start AS MATERIALIZED (
    SELECT flown.key_id, flown.call_id, flown.started_at AS at, lag(flown.call_id) OVER turn AS earlier_call,
           lag(flown.started_at) OVER turn AS earlier_at, lag(flown.cost) OVER turn AS earlier_cost
      FROM flown
     WHERE flown.started_at IS NOT NULL
    WINDOW turn AS (PARTITION BY flown.key_id ORDER BY flown.started_at, flown.id)
), found AS (
    SELECT 'concurrency' AS why, limited.id, limited.name, held.dispatched_at AS at,
           json_build_object('why', 'concurrency', 'in_flight', held.cost, 'concurrency', limited.concurrency,
                             'dispatched_at', held.dispatched_at, 'limited_at', limited.limited_at) AS facts
      FROM held
      JOIN limited ON limited.id = held.key_id
     WHERE held.is_all AND held.cost > limited.concurrency AND held.dispatched_at > limited.since
     UNION ALL
    SELECT 'per_worker', limited.id, limited.name, held.started_at,
           json_build_object('why', 'per_worker', 'worker', held.worker_id, 'in_flight', held.cost,
                             'per_worker', limited.per_worker, 'started_at', held.started_at,
                             'limited_at', limited.limited_at)
      FROM held
      JOIN limited ON limited.id = held.key_id
     WHERE held.worker_id IS NOT NULL AND held.cost > limited.per_worker AND held.started_at > limited.since
     UNION ALL
    (SELECT DISTINCT ON (limited.id) 'rate', limited.id, limited.name, trip.at,
            json_build_object('why', 'rate', 'spent', trip.reserved + earlier.cost, 'rate_limit', limited.rate_limit,
                              'rate_period', limited.rate_period, 'started_at', trip.at,
                              'limited_at', limited.limited_at)
       FROM trip
       JOIN limited ON limited.id = trip.key_id
      CROSS JOIN LATERAL (
            SELECT COALESCE(sum(start.cost), 0) AS cost
              FROM dispatcher_start AS start
             WHERE start.key_id = limited.id AND start.at > trip.at - limited.rate_period
               AND start.at <= trip.at - %(margin)s::interval) AS earlier
      WHERE trip.place <= 5 AND trip.at > limited.since AND trip.reserved + earlier.cost > limited.rate_limit
      ORDER BY limited.id, trip.reserved + earlier.cost DESC)
     UNION ALL
    SELECT 'throttle', limited.id, limited.name, start.at,
           json_build_object('why', 'throttle', 'first', start.earlier_call, 'second', start.call_id,
                             'apart', start.at - start.earlier_at, 'spacing', due.spacing, 'started_at', start.at)
      FROM start
      JOIN limited ON limited.id = start.key_id AND limited.throttle_limit IS NOT NULL
     CROSS JOIN LATERAL (
           SELECT {{@spacing}}(start.earlier_cost, limited.throttle_limit, limited.throttle_period) AS spacing) AS due
     WHERE start.at - start.earlier_at < due.spacing AND start.earlier_at > limited.since
)
SELECT 'key ' || name AS what, id::text AS target, '' AS version, facts, count(*) OVER () AS total
  FROM found
 ORDER BY why, name, at, id
 LIMIT %(most)s::int
