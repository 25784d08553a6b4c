-- audit_unserved_asleep: lanes that sleep although calls wait in them, without a note: no trip would serve them.
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
SELECT 'lane ' || site.lane_id AS what, site.lane_id::text AS target, head.id || ' ' || head.version AS version,
       json_build_object('queue', site.queue, 'priority', site.priority, 'first_call', head.id,
                         'sent_at', head.created_at) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN hop
  JOIN dispatcher_lanesite AS site ON site.lane_id = hop.lane_id
 CROSS JOIN LATERAL {{first_call_in(site.lane_id)}} AS head
 WHERE site.place IS NULL AND NOT {{is_noted(lane_id, ARRAY[site.lane_id], clock.now)}}
   AND {{not_expired(head, clock.now)}}
 ORDER BY site.lane_id
 LIMIT %(most)s::int
