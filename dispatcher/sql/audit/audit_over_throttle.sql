-- audit_over_throttle: consecutive starts of running calls that are closer than the throttle of their key allows.
-- Starts before the limits last changed had other ones.
WITH {{clock}}, start AS MATERIALIZED (
    SELECT slot.key_id, slot.call_id, slot.started_at AS at, lag(slot.call_id) OVER turn AS earlier_call,
           lag(slot.started_at) OVER turn AS earlier_at, lag(slot.cost) OVER turn AS earlier_cost
      FROM dispatcher_slot AS slot
     WHERE slot.key_id IS NOT NULL AND slot.started_at IS NOT NULL
    WINDOW turn AS (PARTITION BY slot.key_id ORDER BY slot.started_at, slot.id)
), paced AS MATERIALIZED (
    SELECT key.id, key.name, start.call_id, start.at, start.earlier_call, start.earlier_at, start.earlier_cost,
           {{limit_in_force(key.override_until > clock.now, key, throttle_limit)}} AS pace,
           {{limit_in_force(key.override_until > clock.now, key, throttle_period)}} AS period,
           {{limited_since(key, clock.now)}} AS since
      FROM clock
     CROSS JOIN start
      JOIN dispatcher_ratelimitkey AS key
        ON key.id = ANY (ARRAY(SELECT started.key_id FROM start AS started)) AND key.id = start.key_id
     WHERE start.earlier_at IS NOT NULL
), spaced AS MATERIALIZED (
    SELECT id, name, call_id, at, earlier_call, earlier_at, since,
           {{@spacing}}(earlier_cost, pace, period) AS spacing
      FROM paced
     WHERE pace IS NOT NULL
)
SELECT 'key ' || name AS what, id::text AS target, '' AS version,
       json_build_object('first', earlier_call, 'second', call_id, 'apart', at - earlier_at, 'spacing', spacing,
                         'started_at', at) AS facts,
       count(*) OVER () AS total
  FROM spaced
 WHERE at - earlier_at < spacing AND earlier_at > since + %(slack)s::interval
 ORDER BY name, at, call_id, id
 LIMIT %(most)s::int
