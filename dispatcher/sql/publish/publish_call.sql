-- publish_call: note that this call was handed to the broker under this ticket: publish_calls for one.
-- By the primary key any plan is the right one, so it needs no settings for it, and is a trip of one statement.
-- The commit does not wait for the disk: a note that a crash loses costs a second delivery, which changes nothing. So
-- does that of a call that another transaction has locked, which is not waited for.
UPDATE dispatcher_callqueue AS call
   SET published_at = {{now}}
  FROM (SELECT set_config('synchronous_commit', 'off', true)) AS lax
 WHERE call.id = (SELECT mine.id
                    FROM dispatcher_callqueue AS mine
                   WHERE mine.id = %(call)s::uuid AND mine.ticket = %(ticket)s::uuid AND mine.published_at IS NULL
                     FOR NO KEY UPDATE SKIP LOCKED)
