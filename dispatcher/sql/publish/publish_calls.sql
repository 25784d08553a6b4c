-- publish_calls: note that these calls were handed to the broker under these tickets.
-- The commit does not wait for the disk: a note that a crash loses costs a second delivery, which changes nothing.
UPDATE dispatcher_callqueue AS call
   SET published_at = {{now}}
  FROM unnest(%(calls)s::uuid[], %(tickets)s::uuid[]) AS published (id, ticket),
       (SELECT set_config('synchronous_commit', 'off', true)) AS lax
 WHERE call.id = ANY (%(calls)s::uuid[]) AND call.id = published.id AND call.ticket = published.ticket
   AND call.published_at IS NULL
