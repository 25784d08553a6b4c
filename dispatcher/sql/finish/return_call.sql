-- return_call: put a call back to the front of its lane without spending its attempt, and free its slots.
-- With `wait`, it is put off for that long instead. With `claim`, what is claimed goes back for that claim only: a
-- message may have been delivered to two workers. If this `is_by_claim`, `claim` stays on the row, as with finish_call:
-- then the task ran.
-- What never ran keeps its count of crashes; with `is_lost` this is one more.
-- No row back means the ticket was replaced, or the call has ended.
WITH returned AS (
    UPDATE dispatcher_callqueue AS call
       SET state = CASE WHEN %(wait)s::interval IS NULL THEN 'available' ELSE 'scheduled' END,
           scheduled_at = COALESCE({{now}} + %(wait)s::interval, call.scheduled_at),
           ticket = NULL, published_at = NULL, started_at = NULL, dispatched_at = NULL,
           claim = CASE WHEN %(is_by_claim)s::bool THEN %(claim)s::uuid
                        WHEN call.state = 'dispatched' THEN call.claim END,
           attempt = call.attempt - CASE WHEN call.state = 'active' THEN 1 ELSE 0 END,
           crashes = CASE WHEN %(is_lost)s::bool THEN call.crashes + 1
                          WHEN call.state = 'active' AND (%(is_by_claim)s::bool OR %(claim)s::uuid IS NULL) THEN 0
                          ELSE call.crashes END
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid
       AND (call.state = 'dispatched' OR %(claim)s::uuid IS NULL OR call.claim = %(claim)s::uuid)
       AND call.state = ANY (%(states)s::text[])
    RETURNING call.id, call.lane_id
), {{slots_freed(returned)}}
SELECT returned.lane_id, {{freed_keys}} AS keys
  FROM returned
