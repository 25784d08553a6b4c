-- publish_calls: note that these calls were handed to the broker under these tickets.
UPDATE dispatcher_callqueue AS call
   SET published_at = COALESCE(%(now)s::timestamptz, clock_timestamp())
  FROM unnest(%(calls)s::uuid[], %(tickets)s::uuid[]) AS published (id, ticket)
 WHERE call.id = published.id AND call.ticket = published.ticket AND call.published_at IS NULL
