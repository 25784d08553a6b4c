-- find_queues: the rows of these queues: who serves each, and how many calls it takes.
SELECT queue.name, queue.delivery, queue.is_undecided, queue.max_depth
  FROM dispatcher_queue AS queue
 WHERE queue.name = ANY (%(names)s::text[])
