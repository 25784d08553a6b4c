-- publish_call: publish_calls for one call, which needs no settings of a pass to be planned well: a trip of one
-- statement.
-- The commit does not wait for the disk: a note that a crash loses costs a second delivery, which changes nothing.
-- Relies on the primary key.
UPDATE dispatcher_callqueue AS call
   SET published_at = {{now}}
  FROM (SELECT set_config('synchronous_commit', 'off', true)) AS lax
 WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.published_at IS NULL
