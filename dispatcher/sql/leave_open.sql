-- leave_open: leave these keys to the next tick, as if time had opened them.
UPDATE dispatcher_ratelimitkey AS key
   SET opens_at = COALESCE(%(now)s::timestamptz, clock_timestamp())
  FROM (SELECT id
          FROM dispatcher_ratelimitkey
         WHERE id = ANY (%(keys)s::bigint[])
         ORDER BY id
           FOR NO KEY UPDATE) AS locked
 WHERE key.id = locked.id
