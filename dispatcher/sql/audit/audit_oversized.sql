-- audit_oversized: keys for which calls wait alone, since their cost exceeds what the limits in force ever allow.
-- Hops from key to key on the index call_oversized, and counts the calls of one up to 10,000.
WITH RECURSIVE {{hops(hop, dispatcher_callqueue, oversized_key_id, true, 0, true)}}
SELECT 'key ' || COALESCE(key.name, hop.value::text) AS what, hop.value::text AS target,
       cheapest.id || ' ' || cheapest.version AS version,
       json_build_object('calls', waiting.calls, 'cheapest_call', cheapest.id, 'cost', cheapest.cost,
                         'concurrency', {{limit_in_force(override.holds, key, concurrency)}},
                         'rate_limit', {{limit_in_force(override.holds, key, rate_limit)}},
                         'throttle_limit',
                         {{limit_in_force(override.holds, key, throttle_limit)}}) AS facts,
       count(*) OVER () AS total
  FROM hop
  LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = hop.value
 CROSS JOIN LATERAL (
       SELECT key.override_until > {{now}} AS holds) AS override
 CROSS JOIN LATERAL (
       SELECT call.id, call.oversized_cost AS cost, call.xmin::text AS version
         FROM dispatcher_callqueue AS call
        WHERE call.oversized_key_id = hop.value
        ORDER BY call.oversized_cost, call.position, call.id
        LIMIT 1) AS cheapest
 CROSS JOIN LATERAL (
       SELECT count(*) AS calls
         FROM (SELECT FROM dispatcher_callqueue AS call WHERE call.oversized_key_id = hop.value LIMIT 10000) AS found
       ) AS waiting
 ORDER BY key.name, hop.value
 LIMIT %(most)s::int
