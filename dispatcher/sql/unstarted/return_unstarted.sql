-- return_unstarted: put a call back that was admitted and never started, without spending its attempt, and free its
-- slots.
-- It is counted on the row until a claim. The first `free` times it waits at the front of its lane again; after that it
-- is put off, each time for twice as long, from `first` up to `longest`. With `is_unknown` its worker does not know the
-- task: it is put off at once; for `soon` and a little more each time if a live worker of its queue knows the task
-- (`is_known`).
-- A worker without task names runs an older version, and may know every task.
-- With `is_lost`, a claim whose start has not come goes back, too: it was never kept; with `claim`, that claim only.
-- No row back means the ticket was replaced, or the call has started or ended.
WITH {{clock}}, mine AS MATERIALIZED (
    SELECT call.id, call.queue, call.task, call.returns
      FROM clock
     CROSS JOIN dispatcher_callqueue AS call
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid
       AND (call.state = 'dispatched' OR (call.state = 'active' AND %(is_lost)s::bool AND call.started_at > clock.now
                                           AND (%(claim)s::uuid IS NULL OR call.claim = %(claim)s::uuid)))
       FOR NO KEY UPDATE OF call
), waits AS MATERIALIZED (
    SELECT mine.id, known.is_known,
           CASE WHEN %(is_unknown)s::bool AND known.is_known
                THEN LEAST(%(soon)s::interval * (mine.returns + 1), %(first)s::interval)
                WHEN %(is_unknown)s::bool OR mine.returns >= %(free)s::int
                THEN LEAST(%(first)s::interval
                           * power(2, LEAST(mine.returns - CASE WHEN %(is_unknown)s::bool THEN 0
                                                                ELSE %(free)s::int END, 20)),
                           %(longest)s::interval) END AS wait
      FROM clock
     CROSS JOIN mine
     CROSS JOIN LATERAL (
           SELECT {{task_has_worker(mine.queue, mine.task, clock.now)}} AS is_known) AS known
), returned AS (
    UPDATE dispatcher_callqueue AS call
       SET state = CASE WHEN waits.wait IS NULL THEN 'available' ELSE 'scheduled' END,
           scheduled_at = COALESCE(clock.now + waits.wait, call.scheduled_at),
           ticket = NULL, published_at = NULL, started_at = NULL, dispatched_at = NULL,
           attempt = call.attempt - CASE WHEN call.state = 'active' THEN 1 ELSE 0 END,
           claim = CASE WHEN call.state = 'dispatched' THEN call.claim END,
           returns = CASE WHEN %(is_unknown)s::bool OR call.published_at IS NOT NULL THEN LEAST(call.returns + 1, 32767)
                          ELSE call.returns END
      FROM clock, waits
     WHERE call.id = waits.id AND call.ticket = %(ticket)s::uuid AND call.state IN ('dispatched', 'active')
    RETURNING call.id, call.lane_id, call.state, call.queue, call.task
), {{slots_freed(returned)}}
SELECT returned.lane_id, returned.state, returned.queue, returned.task, waits.is_known,
       {{freed_keys}} AS keys
  FROM returned
 CROSS JOIN waits
