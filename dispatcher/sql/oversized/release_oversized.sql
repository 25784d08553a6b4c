-- release_oversized: let calls that waited alone wait in their lanes again, in their old places, where the limits in
-- force allow their cost: of the next keys after `after`, per key up to `most`, the cheapest first. Each lane gets a
-- note: what comes back may be its first call, so it is looked at even where it is parked. A key that is gone limits
-- nothing; a group allows what its largest member does. `last`: where the next look goes on, 0 at the end. Hops from
-- key to key on the index call_oversized, so the number of such calls costs nothing.
WITH RECURSIVE {{clock}},
{{hops(hop, dispatcher_callqueue, oversized_key_id, true, %(after)s::bigint, hop.number < %(most_keys)s::int)}},
raised AS MATERIALIZED (
    SELECT hop.value AS id, LEAST(COALESCE(key.fits, 2147483647), member.fits) AS fits
      FROM clock
     CROSS JOIN hop
      LEFT JOIN {{@room}}(ARRAY(SELECT hop.value FROM hop), NULL, clock.now, '0', '0') AS key ON key.id = hop.value
      LEFT JOIN LATERAL (
           SELECT COALESCE(max(each.fits), 0) AS fits
             FROM {{@room}}({{@members_of}}(key.name), NULL, clock.now, '0', '0') AS each) AS member ON key.is_group
), fitting AS MATERIALIZED (
    SELECT call.id
      FROM raised
     CROSS JOIN LATERAL (
           SELECT call.id
             FROM dispatcher_callqueue AS call
            WHERE call.oversized_key_id = raised.id AND call.oversized_cost <= raised.fits
            ORDER BY call.oversized_cost, call.position, call.id
            LIMIT %(most)s::int
              FOR NO KEY UPDATE SKIP LOCKED) AS call
), released AS (
    UPDATE dispatcher_callqueue AS call
       SET oversized_key_id = NULL, oversized_cost = NULL
     -- An array: joined, the planner may read the whole table to find these.
     WHERE call.id = ANY (ARRAY(SELECT fitting.id FROM fitting)) AND call.oversized_key_id IS NOT NULL
    RETURNING call.lane_id, call.position
), {{lanes_noted(released, true)}}
SELECT (SELECT count(*) FROM released) AS calls,
       COALESCE((SELECT max(hop.value) FROM hop HAVING count(*) = %(most_keys)s::int), 0) AS last
