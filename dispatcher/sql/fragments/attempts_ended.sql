-- attempts_ended: the CTEs that record how the attempts of `calls` ended, each if its ticket and claim hold the call,
-- and delete their slots; `freed_keys` lists the keys of these and their groups. Locks the calls in order of id.
-- `claim` stays on the row, so that the claim recognizes its own finish if the answer was lost (find_finished). Calls
-- are found by id alone: with the state beside it, a plan that was made while few calls were in flight reads all of
-- these.
mine AS MATERIALIZED (
    SELECT call.id, call.state, call.ticket, call.claim
      FROM dispatcher_callqueue AS call
     WHERE call.id = ANY (%(calls)s::uuid[])
     ORDER BY call.id
       FOR NO KEY UPDATE
), ended AS (
    UPDATE dispatcher_callqueue AS call
       SET state = ending.state, reason = ending.reason, ticket = NULL, result = ending.result,
           crashes = COALESCE(ending.crashes, call.crashes),
           scheduled_at = COALESCE(clock.now + ending.wait, call.scheduled_at),
           finished_at = CASE WHEN ending.state = ANY (%(terminal)s::text[]) THEN clock.now END,
           returns = 0,
           {{error_recorded(failure.error)}}
      FROM clock
     CROSS JOIN mine
      JOIN unnest(%(calls)s::uuid[], %(tickets)s::uuid[], %(claims)s::uuid[], %(states)s::text[], %(reasons)s::text[],
                  %(crashes)s::smallint[], %(results)s::jsonb[], %(errors)s::jsonb[], %(waits)s::interval[])
           AS ending (id, ticket, claim, state, reason, crashes, result, error, wait)
        ON ending.id = mine.id AND ending.ticket = mine.ticket AND ending.claim = mine.claim
     CROSS JOIN LATERAL (
           SELECT ending.error || jsonb_build_object('occurred_at', clock.now)) AS failure (error)
     WHERE call.id = ANY (%(calls)s::uuid[]) AND call.id = mine.id AND mine.state = 'active'
    RETURNING call.id
), {{slots_freed(ended)}}, freed_keys AS MATERIALIZED (
    SELECT ARRAY(SELECT key_id FROM freed WHERE key_id IS NOT NULL
                  UNION
                 SELECT key_group.id FROM ({{groups_of(ARRAY(SELECT key_id FROM freed))}}) AS key_group
                  ORDER BY key_id) AS ids
)
