-- publish_calls: note that these calls were handed to the broker under these tickets.
-- The commit does not wait for the disk: a note that a crash loses costs a second delivery, which changes nothing. So
-- does that of a call that another transaction has locked, which is not waited for.
UPDATE dispatcher_callqueue AS call
   SET published_at = {{now}}
  FROM (SELECT set_config('synchronous_commit', 'off', true)) AS lax
 WHERE call.id = ANY (ARRAY(
         SELECT mine.id
           FROM dispatcher_callqueue AS mine
           JOIN unnest(%(calls)s::uuid[], %(tickets)s::uuid[]) AS published (id, ticket)
             ON published.id = mine.id AND published.ticket = mine.ticket
          WHERE mine.id = ANY (%(calls)s::uuid[]) AND mine.published_at IS NULL
            FOR NO KEY UPDATE OF mine SKIP LOCKED))
