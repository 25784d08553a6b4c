-- requeue_call: let a call in flight wait again at the front of its lane, without an end of its own: no attempt is
-- spent. `reason` says why, and which calls it takes:
--   unused       it came to a process, and was not run: dispatched, or active by this claim (NULL: by any)
--   stopped      it ran, and its provider said stop, or its task replaced itself: the same; `claim` stays, so that its
--                claim recognizes its own end
--   undelivered  its message has no worker: dispatched
--   lost         its message is lost, or its process before the start: dispatched, or active and not started
--   unknown      its worker does not know the task: dispatched
--   silent       it was fetched over HTTP, and nothing came since: active; it counts as one more crash
-- With `wait` it is put off for so long. Lost and unknown ones are counted on the row until a start: lost ones are put
-- off after `free` times, each time for twice as long, from a minute, or a `lease` if that is shorter, up to 12 leases,
-- an hour by default; unknown ones at once, for half a second and a little more each time if a live worker of the queue
-- knows the task (`is_known`).
-- No row back means the ticket was replaced, or the call is none of these.
WITH {{clock}}, mine AS MATERIALIZED (
    SELECT call.id, call.state, call.queue, call.task, call.returns, call.published_at
      FROM clock
     CROSS JOIN dispatcher_callqueue AS call
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid
       AND ((call.state = 'dispatched' AND %(reason)s::text <> 'silent')
            OR (call.state = 'active' AND (%(claim)s::uuid IS NULL OR call.claim = %(claim)s::uuid)
                AND (%(reason)s::text IN ('unused', 'stopped', 'silent')
                     OR (%(reason)s::text = 'lost' AND call.started_at > clock.now))))
       FOR NO KEY UPDATE OF call
), waits AS MATERIALIZED (
    SELECT mine.id, known.is_known, spared.is_returned,
           CASE WHEN NOT spared.is_returned THEN %(wait)s::interval
                WHEN %(reason)s::text = 'unknown' AND known.is_known
                THEN LEAST(interval '0.5 seconds' * (mine.returns + 1), spared.first)
                WHEN mine.returns >= spared.times
                THEN LEAST(spared.first * power(2, LEAST(mine.returns - spared.times, 20)), 12 * %(lease)s::interval)
            END AS wait
      FROM mine
     CROSS JOIN clock
     CROSS JOIN LATERAL (SELECT %(reason)s::text IN ('lost', 'unknown') AS is_returned,
                                CASE %(reason)s::text WHEN 'lost' THEN %(free)s::int ELSE 0 END AS times,
                                LEAST(interval '1 minute', %(lease)s::interval) AS first) AS spared
     CROSS JOIN LATERAL (
           SELECT {{task_has_worker(mine.queue, mine.task, clock.now)}} AS is_known) AS known
), returned AS (
    UPDATE dispatcher_callqueue AS call
       SET state = CASE WHEN waits.wait IS NULL THEN 'available' ELSE 'scheduled' END,
           scheduled_at = COALESCE(clock.now + waits.wait, call.scheduled_at),
           ticket = NULL, published_at = NULL, started_at = NULL, dispatched_at = NULL,
           attempt = call.attempt - (call.state = 'active')::int,
           claim = CASE WHEN %(reason)s::text = 'stopped' THEN %(claim)s::uuid
                        WHEN call.state = 'dispatched' THEN call.claim END,
           crashes = CASE %(reason)s::text WHEN 'silent' THEN call.crashes + 1 WHEN 'stopped' THEN 0
                                           ELSE call.crashes END,
           returns = CASE WHEN %(reason)s::text = 'unknown' OR (waits.is_returned AND call.published_at IS NOT NULL)
                          THEN LEAST(call.returns + 1, 32767) ELSE call.returns END
      FROM clock, waits
     WHERE call.id = waits.id AND call.ticket = %(ticket)s::uuid AND call.state IN ('dispatched', 'active')
    RETURNING call.id, call.lane_id, call.position, call.state, call.queue, call.task
), waiting AS (
    SELECT returned.lane_id, returned.position FROM returned WHERE returned.state = 'available'
), {{slots_freed(returned)}}, {{lanes_noted(waiting, true)}}
SELECT returned.state, returned.queue, returned.task, waits.is_known
  FROM returned
 CROSS JOIN waits
