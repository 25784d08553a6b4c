-- report_queues: how many calls of these queues are in which state, up to `most` each; and how the last minute and hour
-- went.
-- The latter comes from the latest `recent` ends of a queue and state: above that, it is estimated from how long they
-- took. Relies on call_of_queue, call_in_flight, call_due_queue and call_ended_queue.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
SELECT wanted.name, available.calls AS available, flying.calls AS active, scheduled.calls AS scheduled,
       retryable.calls AS retryable, completed.calls AS completed, discarded.calls AS discarded,
       cancelled.calls AS cancelled, good.last_hour AS completed_last_hour, bad.last_hour AS failed_last_hour,
       good.last_minute AS completed_last_minute, bad.last_minute AS failed_last_minute, good.duration_ms, good.wait_ms
  FROM clock
 CROSS JOIN unnest(%(queues)s::text[]) WITH ORDINALITY AS wanted (name, place)
 CROSS JOIN LATERAL {{calls_counted(state = 'available', position)}} AS available
 CROSS JOIN LATERAL {{calls_counted((state = 'dispatched' OR state = 'active'), state)}} AS flying
 CROSS JOIN LATERAL {{calls_counted(state = 'scheduled', scheduled_at)}} AS scheduled
 CROSS JOIN LATERAL {{calls_counted(state = 'retryable', scheduled_at)}} AS retryable
 CROSS JOIN LATERAL {{calls_counted(state = 'completed' AND finished_at IS NOT NULL, finished_at)}} AS completed
 CROSS JOIN LATERAL {{calls_counted(state = 'discarded' AND finished_at IS NOT NULL, finished_at)}} AS discarded
 CROSS JOIN LATERAL {{calls_counted(state = 'cancelled' AND finished_at IS NOT NULL, finished_at)}} AS cancelled
 CROSS JOIN LATERAL ({{latest_ends(wanted.name, 'completed')}}) AS good
 CROSS JOIN LATERAL ({{latest_ends(wanted.name, 'discarded')}}) AS bad
 ORDER BY wanted.place
