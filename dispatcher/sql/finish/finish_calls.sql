-- finish_calls: record how attempts of one worker ended, as finish_call does for one, and give their slots back. No row
-- of a call means that its ticket was replaced, or that an answer was lost that recorded it. `claim` stays on the row,
-- so that the claim knows its own finish again (find_finished). Locks the calls in order of id. `other`: the keys on
-- which a lane of a queue that is not of `queues` is parked first. Relies on lane_parked.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), mine AS MATERIALIZED (
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.id = ANY (%(calls)s::uuid[]) AND call.state = 'active'
     ORDER BY call.id
       FOR NO KEY UPDATE
), ended AS (
    UPDATE dispatcher_callqueue AS call
       SET state = ending.state, reason = ending.reason, ticket = NULL, result = ending.result,
           crashes = COALESCE(ending.crashes, call.crashes),
           scheduled_at = COALESCE(clock.now + ending.wait, call.scheduled_at),
           finished_at = CASE WHEN ending.state = ANY (%(terminal)s::text[]) THEN clock.now END,
           returns = 0, error = failure.error,
           errors = CASE WHEN failure.error IS NULL THEN call.errors
                         WHEN jsonb_array_length(call.errors) < 25 THEN call.errors || failure.error
                         ELSE jsonb_path_query_array(call.errors, '$[0 to 4]')
                              || jsonb_path_query_array(call.errors, '$[last - 18 to last]') || failure.error END,
           error_count = CASE WHEN failure.error IS NULL THEN call.error_count
                              ELSE GREATEST(call.error_count, jsonb_array_length(call.errors)) + 1 END
      FROM clock
     CROSS JOIN mine
      JOIN unnest(%(calls)s::uuid[], %(tickets)s::uuid[], %(claims)s::uuid[], %(states)s::text[], %(reasons)s::text[],
                  %(crashes)s::smallint[], %(results)s::jsonb[], %(errors)s::jsonb[], %(waits)s::interval[])
           AS ending (id, ticket, claim, state, reason, crashes, result, error, wait) ON ending.id = mine.id
     CROSS JOIN LATERAL (
           SELECT ending.error || jsonb_build_object('occurred_at', clock.now)) AS failure (error)
     WHERE call.id = ending.id AND call.ticket = ending.ticket AND call.state = 'active' AND call.claim = ending.claim
    RETURNING call.id
), freed AS (
    DELETE FROM dispatcher_slot AS slot
     USING ended
     WHERE slot.call_id = ended.id
    RETURNING slot.key_id
)
SELECT ARRAY(SELECT ended.id FROM ended) AS calls, keys.ids AS keys,
       ARRAY(SELECT key.id
               FROM unnest(keys.ids) AS key (id)
              WHERE (SELECT lane.queue <> ALL (%(queues)s::text[])
                       FROM dispatcher_lane AS lane
                      WHERE lane.parked_on_id = key.id
                      ORDER BY lane.priority DESC, lane.served_at, lane.id
                      LIMIT 1)) AS other
  FROM (SELECT ARRAY(SELECT DISTINCT freed.key_id FROM freed WHERE freed.key_id IS NOT NULL ORDER BY freed.key_id) AS ids) AS keys
