-- finish_call: record how an attempt ended, if this ticket still owns the call, and give its slots back.
-- No row back means the ticket was replaced, and the outcome is dropped; or that a crash of the database lost the
-- claim, which restore_claim then records. With `claim`, only the attempt of that claim is ended: by its own outcome,
-- or by the loss of its process.
-- If this `is_by_claim`, `claim` stays on the row, so that it knows its own finish again if the answer was lost
-- (find_finished).
WITH ended AS (
    UPDATE dispatcher_callqueue AS call
       SET state = %(state)s::text, reason = %(reason)s::text, ticket = NULL,
           claim = CASE WHEN %(is_by_claim)s::bool THEN %(claim)s::uuid END,
           result = %(result)s::jsonb,
           crashes = COALESCE(%(crashes)s::smallint, call.crashes),
           scheduled_at = COALESCE({{now}} + %(retry_in)s::interval, call.scheduled_at),
           finished_at = CASE WHEN %(state)s::text = ANY (%(terminal)s::text[]) THEN {{now}} END,
           returns = 0,
           {{error_recorded(failure.error)}}
      FROM (SELECT %(error)s::jsonb || jsonb_build_object('occurred_at', {{now}})
           ) AS failure (error)
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.state = 'active'
       AND (%(claim)s::uuid IS NULL OR call.claim = %(claim)s::uuid)
    RETURNING call.id, call.lane_id
), {{slots_freed(ended)}}
SELECT ended.lane_id, {{freed_keys}} AS keys
  FROM ended
