-- read_lane_heads: these lanes in the order in which they are served, each with the calls at its head, locked.
-- The caller holds the locks of the lanes. A call that somebody else has locked (to cancel it, say) is left out.
-- A lane that spends a key of `stuck`, which somebody keeps locked, goes before no other.
-- What stands before others is looked up in the order of an index, queue by queue and key by key: so many lanes as are
-- awake, held or parked cost nothing. Relies on the indexes call_waiting, lane_awake, lane_held and lane_parked.
WITH {{clock}}, higher AS MATERIALIZED (
    SELECT mine.queue, GREATEST(awake.priority, held.priority) AS priority
      FROM (SELECT lane.queue, min(lane.priority) AS lowest
              FROM dispatcher_lane AS lane
             WHERE lane.id = ANY (%(lanes)s::bigint[])
             GROUP BY lane.queue) AS mine
      LEFT JOIN LATERAL (
           SELECT lane.priority
             FROM dispatcher_lane AS lane
            WHERE lane.is_awake AND lane.queue = mine.queue AND lane.priority > mine.lowest
              AND lane.id <> ALL (%(lanes)s::bigint[]) AND NOT lane.key_ids && %(stuck)s::bigint[]
            ORDER BY lane.queue, lane.priority DESC
            LIMIT 1) AS awake ON true
      LEFT JOIN LATERAL (
           SELECT lane.priority
             FROM dispatcher_lane AS lane
            WHERE lane.is_held AND lane.queue = mine.queue AND lane.priority > mine.lowest
              AND lane.id <> ALL (%(lanes)s::bigint[]) AND NOT lane.key_ids && %(stuck)s::bigint[]
            ORDER BY lane.priority DESC, lane.served_at, lane.id
            LIMIT 1) AS held ON true
), behind AS MATERIALIZED (
    SELECT DISTINCT lane.id
      FROM dispatcher_lane AS lane
     CROSS JOIN LATERAL (
           SELECT unnest(lane.key_ids)
            UNION ALL
           SELECT key.id
             FROM dispatcher_ratelimitkey AS key
            WHERE key.name = 'queue:' || lane.queue) AS spent (key_id)
     WHERE lane.id = ANY (%(lanes)s::bigint[])
       AND (SELECT ahead.id
              FROM dispatcher_lane AS ahead
             WHERE ahead.parked_on_id = spent.key_id AND ahead.priority > lane.priority AND ahead.queue = lane.queue
               AND ahead.id <> ALL (%(lanes)s::bigint[]) AND NOT ahead.key_ids && %(stuck)s::bigint[]
             ORDER BY ahead.priority DESC, ahead.served_at, ahead.id
             LIMIT 1) IS NOT NULL
)
SELECT clock.now, lane.id AS lane_id, lane.queue, lane.priority, lane.on_limit, lane.key_ids,
       lane.parked_on_id AS parked_on,
       COALESCE(higher.priority > lane.priority, false) AS yields_to_higher_priority,
       behind.id IS NOT NULL AS yields_to_parked_lane,
       head.id AS call_id, head.costs
  FROM clock
 CROSS JOIN dispatcher_lane AS lane
  LEFT JOIN higher ON higher.queue = lane.queue
  LEFT JOIN behind ON behind.id = lane.id
  LEFT JOIN LATERAL (
       SELECT call.id, call.position, call.costs
         FROM dispatcher_callqueue AS call
        WHERE {{waits_in(call, lane.id)}}
          AND {{not_expired(call, clock.now)}}
        ORDER BY call.position
        LIMIT %(heads)s::int
          FOR NO KEY UPDATE SKIP LOCKED) AS head ON true
 WHERE lane.id = ANY (%(lanes)s::bigint[])
 ORDER BY lane.priority DESC, lane.served_at, lane.id, head.position
