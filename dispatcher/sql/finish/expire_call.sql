-- expire_call: end a call whose message arrived after it expired, and free its slots; nothing was started.
WITH ended AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'discarded', reason = 'expired', ticket = NULL, finished_at = COALESCE(%(now)s::timestamptz, clock_timestamp()),
           error = jsonb_build_object('type', 'Expired', 'message', 'not started by ' || call.expires_at,
                                      'attempt', call.attempt, 'occurred_at', COALESCE(%(now)s::timestamptz, clock_timestamp()))
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.state = 'dispatched'
    RETURNING call.id, call.lane_id
), freed AS (
    DELETE FROM dispatcher_slot AS slot
     USING ended
     WHERE slot.call_id = ended.id
    RETURNING slot.key_id
)
SELECT ended.lane_id, ARRAY(SELECT key_id FROM freed WHERE key_id IS NOT NULL ORDER BY key_id) AS keys
  FROM ended
