-- audit_unserved_held: queues that hold lanes up although they are served and have room on the way to their workers.
-- Hops from queue to queue on the index lane_held, so the number of lanes that one has held costs nothing.
-- Relies on call_in_flight and call_waiting.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
), hop AS (
    (SELECT lane.queue
       FROM dispatcher_lane AS lane
      WHERE lane.is_held
      ORDER BY lane.queue
      LIMIT 1)
     UNION ALL
    SELECT next.queue
      FROM hop
     CROSS JOIN LATERAL (
           SELECT lane.queue
             FROM dispatcher_lane AS lane
            WHERE lane.is_held AND lane.queue > hop.queue
            ORDER BY lane.queue
            LIMIT 1) AS next
), going AS MATERIALIZED (
    SELECT hop.queue, (SELECT count(*)
                         FROM (SELECT
                                 FROM dispatcher_callqueue AS call
                                WHERE call.queue = hop.queue AND call.state = 'dispatched'
                                LIMIT %(ahead)s::int) AS call) AS unclaimed
      FROM clock
     CROSS JOIN hop
     WHERE NOT EXISTS (SELECT FROM dispatcher_queue AS other WHERE other.name = hop.queue AND other.delivery <> 'broker')
       AND (NOT %(is_gated)s::bool OR EXISTS (SELECT
                                                FROM dispatcher_worker AS worker
                                               WHERE hop.queue = ANY (worker.queues) AND worker.serves_until > clock.now))
)
SELECT 'queue ' || going.queue AS what, going.queue AS target, head.id || ' ' || head.version AS version,
       json_build_object('lane', front.id, 'first_call', head.id, 'unclaimed', going.unclaimed,
                         'allowed', %(ahead)s::int) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN going
 CROSS JOIN LATERAL (
       SELECT lane.id
         FROM dispatcher_lane AS lane
        WHERE lane.is_held AND lane.queue = going.queue
        ORDER BY lane.priority DESC, lane.served_at, lane.id
        LIMIT 1) AS front
 CROSS JOIN LATERAL (
       SELECT call.id, call.expires_at, call.xmin::text AS version
         FROM dispatcher_callqueue AS call
        WHERE call.lane_id = front.id AND call.state = 'available' AND call.oversized_key_id IS NULL
        ORDER BY call.position
        LIMIT 1) AS head
 WHERE going.unclaimed < %(ahead)s::int AND (head.expires_at IS NULL OR head.expires_at > clock.now)
 ORDER BY going.queue, front.id
 LIMIT %(most)s::int
