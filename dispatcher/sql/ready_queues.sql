-- ready_queues: which of these queues have a lane that a fetch could take calls of, in the order given.
-- A lane that is awake is about to be held or parked by a pass. Relies on the indexes lane_held and lane_awake.
SELECT queue.name
  FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS queue (name, turn)
 WHERE (SELECT lane.id
          FROM dispatcher_lane AS lane
         WHERE lane.is_held AND lane.queue = queue.name
         ORDER BY lane.priority DESC, lane.served_at, lane.id
         LIMIT 1) IS NOT NULL
    OR (SELECT lane.id
          FROM dispatcher_lane AS lane
         WHERE lane.is_awake AND lane.queue = queue.name
         ORDER BY lane.priority DESC, lane.queue
         LIMIT 1) IS NOT NULL
 ORDER BY queue.turn
