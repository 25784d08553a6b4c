-- fetchable_queues: those of these queues that workers fetch from, in the order given. `has_due`: calls of the queue are
-- scheduled or retryable, and their time has come. Relies on the index call_due_queue.
SELECT queue.name, {{calls_are_due(queue.name)}} AS has_due
  FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS mine (name, turn)
  JOIN dispatcher_queue AS queue ON queue.name = mine.name AND queue.delivery = 'http'
 ORDER BY mine.turn
