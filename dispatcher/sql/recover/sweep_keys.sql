-- sweep_keys: of the next keys after this one that lanes are parked on, which have room that no pass will use.
-- A process may die between a finish and its hand-over; time does not open such a key. Hops from key to key on the
-- index lane_parked, so keys without parked lanes, and the number of lanes on one, cost nothing. A key has room if it
-- has enough for the call in front, or if that one costs more than it ever has: the call must wait alone then. One
-- whose override has run out is the tick's, as all that time opens.
WITH RECURSIVE hop AS (
    (SELECT lane.parked_on_id AS key_id, 1 AS number
       FROM dispatcher_lane AS lane
      WHERE lane.parked_on_id > %(after)s::bigint
      ORDER BY lane.parked_on_id
      LIMIT 1)
     UNION ALL
    SELECT next.key_id, hop.number + 1
      FROM hop
     CROSS JOIN LATERAL (
           SELECT lane.parked_on_id AS key_id
             FROM dispatcher_lane AS lane
            WHERE lane.parked_on_id > hop.key_id
            ORDER BY lane.parked_on_id
            LIMIT 1) AS next
     WHERE hop.number < %(most)s::int
), held AS (
    SELECT key.id, {{limit_in_force(key.override_until > clock_timestamp(), key, concurrency)}} AS concurrency,
           {{limit_in_force(key.override_until > clock_timestamp(), key, rate_limit)}} AS rate_limit,
           (SELECT COALESCE(sum(slot.cost), 0) FROM dispatcher_slot AS slot WHERE slot.key_id = key.id) AS cost,
           COALESCE((head.costs ->> key.name)::int, 1) AS wanted
      FROM hop
      JOIN dispatcher_ratelimitkey AS key ON key.id = hop.key_id
     CROSS JOIN LATERAL {{first_parked_lane(key.id)}} AS front
      LEFT JOIN LATERAL (
           SELECT call.costs
             FROM dispatcher_callqueue AS call
            WHERE {{waits_in(call, front.id)}}
            ORDER BY call.position
            LIMIT 1) AS head ON true
     WHERE key.opens_at IS NULL AND NOT key.is_paused
       AND (key.override_until IS NULL OR key.override_until > clock_timestamp())
)
SELECT ARRAY(SELECT held.id
               FROM held
              WHERE held.concurrency IS NULL OR held.cost + held.wanted <= held.concurrency
                 OR (held.concurrency > 0 AND held.wanted > held.concurrency)
                 OR held.wanted > held.rate_limit) AS stranded,
       CASE WHEN count(*) = %(most)s::int THEN max(key_id) ELSE 0 END AS last
  FROM hop
