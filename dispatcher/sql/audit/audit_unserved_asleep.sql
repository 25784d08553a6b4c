-- audit_unserved_asleep: lanes that sleep although calls wait in them: no pass would serve them.
-- Hops from lane to lane on the index call_waiting, so neither the backlog nor lanes without calls cost anything.
WITH RECURSIVE {{clock}}, hop AS (
    (SELECT call.lane_id
       FROM dispatcher_callqueue AS call
      WHERE call.state = 'available' AND call.oversized_key_id IS NULL
      ORDER BY call.lane_id
      LIMIT 1)
     UNION ALL
    SELECT next.lane_id
      FROM hop
     CROSS JOIN LATERAL (
           SELECT call.lane_id
             FROM dispatcher_callqueue AS call
            WHERE call.state = 'available' AND call.oversized_key_id IS NULL AND call.lane_id > hop.lane_id
            ORDER BY call.lane_id
            LIMIT 1) AS next
)
SELECT 'lane ' || lane.id AS what, lane.id::text AS target, head.id || ' ' || head.version AS version,
       json_build_object('queue', lane.queue, 'priority', lane.priority, 'first_call', head.id,
                         'sent_at', head.created_at) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN hop
  JOIN dispatcher_lane AS lane ON lane.id = hop.lane_id
 CROSS JOIN LATERAL {{first_call_in(lane.id)}} AS head
 WHERE NOT lane.is_awake AND lane.parked_on_id IS NULL AND NOT lane.is_held
   AND {{not_expired(head, clock.now)}}
 ORDER BY lane.id
 LIMIT %(most)s::int
