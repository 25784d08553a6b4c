-- record_ends: record how attempts ended, each if its ticket and claim (NULL: any) still hold the call, and delete
-- their slots.
-- Returns the ends that were recorded, those that another transaction keeps from being recorded (the caller brings
-- these again), and the keys that are free again. The claim that ended it stays on the row, so that it recognizes its
-- own end if the answer was lost. A call that waits again leaves a note, since it is the first of its lane.
-- Calls and slots are found by the ids given: a plan that was made while there were few in flight would read all of
-- them, and all that are gone. So COALESCE hides the state from the index call_in_flight.
CREATE FUNCTION @record_ends(p_calls uuid[], p_tickets uuid[], p_claims uuid[], p_states text[], p_reasons text[],
    p_crashes smallint[], p_results jsonb[], p_errors jsonb[], p_waits interval[], p_now timestamptz,
    OUT ended uuid[], OUT locked uuid[], OUT freed bigint[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_slots bigint[];
BEGIN
  IF array_remove(p_errors, NULL) <> '{}' THEN
    p_errors := ARRAY(SELECT failure.error || jsonb_build_object('occurred_at', p_now)
                        FROM unnest(p_errors) WITH ORDINALITY AS failure (error, n)
                       ORDER BY failure.n);
  END IF;
  -- Who has locked a slot, and not its call, must not end the whole trip.
  v_slots := ARRAY(SELECT slot.id FROM dispatcher_slot AS slot WHERE slot.call_id = ANY (p_calls)
                      FOR UPDATE SKIP LOCKED);
  WITH recorded AS (
    UPDATE dispatcher_callqueue AS call
       SET state = p_states[n], reason = p_reasons[n], ticket = NULL, claim = p_claims[n], result = p_results[n],
           returns = 0,
           crashes = COALESCE(p_crashes[n], call.crashes),
           scheduled_at = COALESCE(p_now + p_waits[n], call.scheduled_at),
           finished_at = CASE WHEN p_states[n] IN ('completed', 'cancelled', 'discarded') THEN p_now END,
           error = p_errors[n],
           errors = CASE WHEN p_errors[n] IS NULL THEN call.errors ELSE @add_error(call.errors, p_errors[n]) END,
           error_count = CASE WHEN p_errors[n] IS NULL THEN call.error_count
                              ELSE GREATEST(call.error_count, jsonb_array_length(call.errors)) + 1 END
      FROM generate_subscripts(p_calls, 1) AS n
     WHERE call.id = ANY (ARRAY(SELECT mine.id FROM dispatcher_callqueue AS mine
                                 WHERE mine.id = ANY (p_calls) FOR NO KEY UPDATE SKIP LOCKED))
       AND call.id = p_calls[n] AND call.ticket = p_tickets[n] AND COALESCE(call.state, '') = 'active'
       AND (p_claims[n] IS NULL OR call.claim = p_claims[n])
       AND call.id <> ALL (ARRAY(SELECT slot.call_id FROM dispatcher_slot AS slot
                                  WHERE slot.call_id = ANY (p_calls) AND slot.id <> ALL (v_slots)))
    RETURNING call.id
  ), gone AS (
    DELETE FROM dispatcher_slot AS slot
     WHERE slot.call_id = ANY (ARRAY(SELECT recorded.id FROM recorded))
    RETURNING slot.key_id)
  SELECT ARRAY(SELECT recorded.id FROM recorded),
         ARRAY(SELECT DISTINCT gone.key_id FROM gone WHERE gone.key_id IS NOT NULL)
    INTO ended, freed;

  IF 'available' = ANY (p_states) THEN
    INSERT INTO dispatcher_note (at, lane_id, is_forced, position)
    SELECT p_now, call.lane_id, true, min(call.position)
      FROM dispatcher_callqueue AS call
     WHERE call.id = ANY (ended) AND call.state = 'available'
     GROUP BY call.lane_id;
  END IF;
  IF cardinality(ended) < cardinality(p_calls) THEN
    locked := ARRAY(SELECT call.id
                      FROM unnest(p_calls, p_tickets, p_claims) AS ending (id, ticket, claim)
                      JOIN dispatcher_callqueue AS call
                        ON call.id = ending.id AND call.ticket = ending.ticket AND COALESCE(call.state, '') = 'active'
                       AND (ending.claim IS NULL OR call.claim = ending.claim));
  END IF;
  locked := COALESCE(locked, '{}');
END $$;
