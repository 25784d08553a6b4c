-- dispatch_bare: the least that a queue in a table does to hand 500 rows out: no limits, no slots, no lanes.
UPDATE bench_call AS call
   SET state = 'dispatched', ticket = gen_random_uuid(), dispatched_at = clock_timestamp()
  FROM (SELECT id
          FROM bench_call
         WHERE state = 'available'
         ORDER BY position
         LIMIT 500
           FOR UPDATE SKIP LOCKED) AS chosen
 WHERE call.id = chosen.id
RETURNING call.id, call.ticket, call.task, call.args, call.kwargs, call.call_data, call.queue, call.attempt
