-- publish_call: note that this call was handed to the broker under this ticket: publish_calls for one.
-- By the primary key any plan is the right one, so it needs no settings for it, and is a trip of one statement.
-- The commit does not wait for the disk: a note that a crash loses costs a second delivery, which changes nothing.
UPDATE dispatcher_callqueue AS call
   SET published_at = {{now}}
  FROM (SELECT set_config('synchronous_commit', 'off', true)) AS lax
 WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.published_at IS NULL
