-- audit_unserved_held: queues that hold lanes up although they are served and have room on the way to their workers.
-- Hops from queue to queue on the index lane_held, so the number of lanes that one has held costs nothing.
-- Relies on call_in_flight and call_waiting.
WITH RECURSIVE {{clock}}, {{queues_with_held_lanes(hop)}}, going AS MATERIALIZED (
    SELECT hop.queue, ({{queue_unclaimed(hop.queue)}}) AS unclaimed
      FROM clock
     CROSS JOIN hop
     WHERE {{queue_is_published(hop.queue, clock.now)}}
)
SELECT 'queue ' || going.queue AS what, going.queue AS target, head.id || ' ' || head.version AS version,
       json_build_object('lane', front.id, 'first_call', head.id, 'unclaimed', going.unclaimed,
                         'allowed', %(ahead)s::int) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN going
 CROSS JOIN LATERAL {{first_held_lane(going.queue)}} AS front
 CROSS JOIN LATERAL {{first_call_in(front.id)}} AS head
 WHERE going.unclaimed < %(ahead)s::int AND {{not_expired(head, clock.now)}}
 ORDER BY going.queue, front.id
 LIMIT %(most)s::int
