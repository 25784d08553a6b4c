-- send_calls: write calls into their lanes, in the order given, and a note for each lane of a call that may start now:
-- the next trip makes the lane ready if it sleeps. No call is written if a key or a lane is missing.
-- `soonest`: when the first call of a kind may start.
-- With `placement` of each kind, calls whose lane is missing are written without one, with what makes it (see
-- place_calls).
-- Positions are drawn in that order, before the lanes are joined, so a lane starts them in it. Costs are in the order
-- of the lane's keys.
-- It is the only statement that writes calls, also for one; wake_workers follows, after the commit, where `may_wake`: a
-- process is idle, or one may be that this snapshot is too old for, or a queue's calls are published; and where the
-- commit comes late. A process that marks itself idle before the commit, and after this has looked, looks again 20 ms
-- later. It calls no function of ours, so it works before `migrate`. The note is written
-- whatever the place of the lane: who puts it to sleep at this moment does not see these calls yet. It has a position
-- that is drawn before those of the calls (the join sees to that): trips look for calls from there on.
-- The lanes are locked against removal until the commit; neither trips nor other senders wait for that.
-- Calls come as JSON: an array for each column costs both sides more. The planner guesses the same number of them
-- whatever is given, and keeps one plan.
WITH kind AS MATERIALIZED (
    SELECT kind.number, kind.queue, kind.priority, kind.on_limit, kind.placement, lane.id AS lane_id, lane.key_ids,
           kind.soonest, (SELECT {{now}}) AS now
      FROM {{lane_kinds}}
      LEFT JOIN LATERAL (
           {{lane_of(kind)}}) AS lane ON true
), first AS MATERIALIZED (
    SELECT nextval('dispatcher_call_position') AS position
      FROM kind
    HAVING bool_and(kind.lane_id IS NOT NULL OR kind.placement IS NOT NULL)
), noted AS (
    INSERT INTO dispatcher_note (at, lane_id, position)
    SELECT {{now}}, kind.lane_id, first.position
      FROM first
     CROSS JOIN kind
     WHERE kind.lane_id IS NOT NULL AND kind.soonest <= kind.now
)
INSERT INTO dispatcher_callqueue
       (id, position, lane_id, placement, task, args, kwargs, call_data, meta, headers, options, queue, priority,
        on_limit, costs, key_costs, state, retry, scheduled_at, expires_at, attempt, created_at, errors)
SELECT draft.id, draft.position, kind.lane_id, CASE WHEN kind.lane_id IS NULL THEN kind.placement END,
       draft.task, draft.args, draft.kwargs, draft.call_data, draft.meta, draft.headers, draft.options,
       kind.queue, kind.priority, kind.on_limit, draft.costs,
       CASE WHEN kind.lane_id IS NOT NULL AND draft.costs <> '{}'
            THEN {{costs_of_keys(draft.costs, kind.key_ids)}} END,
       CASE WHEN draft.is_pending THEN 'pending'
            WHEN COALESCE(draft.scheduled_at, kind.now + draft.scheduled_in) > kind.now THEN 'scheduled'
            ELSE 'available' END,
       draft.retry, COALESCE(draft.scheduled_at, kind.now + draft.scheduled_in),
       COALESCE(draft.expires_at, kind.now + draft.expires_in), 0, kind.now, '[]'
  FROM (SELECT nextval('dispatcher_call_position') AS position, call.id, call.kind, call.task, call.args, call.kwargs,
               call.call_data, call.meta, call.headers, call.options, call.costs, call.retry, call.scheduled_at,
               call.expires_at, call.scheduled_in, call.expires_in, call.is_pending
          FROM first
         CROSS JOIN json_to_recordset(%(drafts)s::json)
            AS call (id uuid, kind int, task text, args jsonb, kwargs jsonb, call_data jsonb, meta jsonb,
                     headers jsonb, options jsonb, costs jsonb, retry jsonb, scheduled_at timestamptz,
                     expires_at timestamptz, scheduled_in interval, expires_in interval, is_pending bool)) AS draft
  JOIN kind ON kind.number = draft.kind
RETURNING id, position, lane_id, key_costs, state, created_at, scheduled_at, expires_at,
          EXISTS (SELECT FROM dispatcher_process AS idle WHERE idle.idle_at IS NOT NULL)
          OR (transaction_timestamp() < statement_timestamp() - interval '5 milliseconds'
              AND current_setting('transaction_isolation') <> 'read committed')
          OR EXISTS (SELECT FROM kind
                      WHERE COALESCE((SELECT stored.delivery FROM dispatcher_queue AS stored
                                       WHERE stored.name = kind.queue), 'broker') = 'broker') AS may_wake
