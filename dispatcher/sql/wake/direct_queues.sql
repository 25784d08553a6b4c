-- direct_queues: those of these queues whose calls Celery workers take directly, in the order given.
SELECT queue.name, queue.weight
  FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS mine (name, turn)
  JOIN dispatcher_queue AS queue ON queue.name = mine.name AND queue.delivery = 'direct'
 ORDER BY mine.turn
