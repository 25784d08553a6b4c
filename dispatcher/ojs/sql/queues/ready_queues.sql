-- ready_queues: which of these queues have lanes that a fetch could take calls of, in the order given, and about how
-- many calls: `most` at the most, and one at the least for each lane. `awake`: lanes that no pass has held or parked
-- yet.
-- `is_due`: calls of the queue are scheduled or retryable, and their time has come.
-- Relies on the indexes lane_held, lane_awake, call_waiting and call_due_queue.
SELECT queue.name, (waiting.calls + is_due::int)::int AS calls, waiting.awake, is_due
  FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS queue (name, turn)
 CROSS JOIN LATERAL (
       SELECT {{calls_are_due(queue.name)}} AS is_due) AS time
 CROSS JOIN LATERAL (
       SELECT LEAST(COALESCE(sum(GREATEST(head.calls, 1)), 0), %(most)s::int) AS calls,
              COALESCE(array_agg(lane.id) FILTER (WHERE lane.is_awake), '{}') AS awake
         FROM ((SELECT lane.id, lane.is_awake
                  FROM dispatcher_lane AS lane
                 WHERE lane.is_held AND lane.queue = queue.name AND NOT lane.key_ids && %(avoid)s::bigint[]
                 ORDER BY lane.priority DESC, lane.served_at, lane.id
                 LIMIT %(most)s::int)
               UNION ALL
               (SELECT lane.id, lane.is_awake
                  FROM dispatcher_lane AS lane
                 WHERE lane.is_awake AND lane.queue = queue.name AND NOT lane.key_ids && %(avoid)s::bigint[]
                 ORDER BY lane.priority DESC, lane.queue
                 LIMIT %(most)s::int)) AS lane
        CROSS JOIN LATERAL (
              SELECT count(*) AS calls
                FROM (SELECT
                        FROM dispatcher_callqueue AS call
                       WHERE {{waits_in(call, lane.id)}}
                       ORDER BY call.position
                       LIMIT %(most)s::int) AS call) AS head) AS waiting
 WHERE (waiting.calls > 0 OR is_due) AND NOT ({{queue_spends(queue.name, %(avoid)s::bigint[])}})
 ORDER BY queue.turn
