-- report_runnable: how many calls of these queues, or of all if queues is NULL, could start now if a process were free,
-- up to `most` each, and since when the oldest of them waits. Locks nothing.
SELECT queue.name, runnable.calls, runnable.since, runnable.active, clock.now AS at
  FROM (SELECT {{now}} AS now) AS clock
 CROSS JOIN {{@queues}}() AS queue
 CROSS JOIN LATERAL {{@runnable}}(queue.name, %(most)s::int, %(horizon)s::interval, %(margin)s::interval,
                                  %(ramp)s::interval, clock.now) AS runnable
 WHERE %(queues)s::text[] IS NULL OR queue.name = ANY (%(queues)s::text[])
 ORDER BY queue.name
