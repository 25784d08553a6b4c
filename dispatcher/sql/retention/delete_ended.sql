-- delete_ended: delete one batch of calls that ended in this state before this time. Relies on the index call_ended.
-- An array: joined, the batch could be chosen again for every row, and another one each time.
DELETE FROM dispatcher_callqueue AS call
 WHERE call.id = ANY (ARRAY(
       SELECT ended.id
         FROM dispatcher_callqueue AS ended
        WHERE ended.state = %(state)s::text AND ended.finished_at IS NOT NULL
          AND ended.finished_at < (SELECT {{now}} - %(retention)s::interval)
        ORDER BY ended.finished_at
        LIMIT %(most)s::int
          FOR UPDATE SKIP LOCKED))
