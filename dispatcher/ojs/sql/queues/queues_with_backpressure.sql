-- queues_with_backpressure: the bounded queues whose latest event is that they were nearly full.
-- Relies on the index entry_pressure.
SELECT queue.name
  FROM dispatcher_queue AS queue
 CROSS JOIN LATERAL (
       SELECT entry.kind
         FROM dispatcher_eventlogentry AS entry
        WHERE entry.queue = queue.name AND entry.kind IN ('backpressure.warning', 'backpressure.cleared')
        ORDER BY entry.at DESC
        LIMIT 1) AS latest
 WHERE queue.max_depth IS NOT NULL AND latest.kind = 'backpressure.warning'
 ORDER BY queue.name
