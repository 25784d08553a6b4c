-- find_queues: the rows of these queues: who serves each, and whether it takes a bounded number of calls.
SELECT queue.name, queue.delivery, queue.is_undecided, queue.max_depth IS NOT NULL AS is_bounded
  FROM dispatcher_queue AS queue
 WHERE queue.name = ANY (%(names)s::text[])
