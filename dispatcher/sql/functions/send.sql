-- send: write calls into their lanes, in the order given, and a note for each lane of a call that may start now: the
-- next trip makes the lane ready if it sleeps. No call is written if a key or a lane is missing.
-- Positions are drawn in that order, before the lanes are joined, so a lane starts them in it. Costs are in the order
-- of the lane's keys. It is the only text that writes calls, also for one. The note is written whatever the place of
-- the lane: who puts it to sleep at this moment does not see these calls yet. It has a position that is drawn before
-- those of the calls (the join sees to that): trips look for calls from there on.
-- The lanes are locked against removal until the commit; neither trips nor other senders wait for that.
-- p_kinds: what makes their lanes, and `soonest`, when the first call of a kind may start. With a `placement` of each,
-- calls whose lane is missing are written without one, with what makes it (see place_calls). p_calls: as JSON, since an
-- array for each column costs both sides more. The planner guesses the same number of them whatever is given, and keeps
-- one plan.
-- p_firsts: the first of each lane, where the transaction is the statement's own: the idle mark of a process of each
-- of their queues is taken, to be notified after the commit (`wake`), and queues are named whose calls are published
-- (`publish`), in a last row without a call. A process that marks itself idle before that commit, and after this has
-- looked, looks again 20 ms later. NULL: within a caller's transaction wake_workers follows after its commit.
CREATE FUNCTION @send(p_kinds json, p_calls json, p_firsts uuid[], p_silence interval, p_is_eager bool,
    p_now timestamptz)
RETURNS TABLE (id uuid, "position" bigint, lane_id bigint, key_costs int[], state text, created_at timestamptz,
    scheduled_at timestamptz, expires_at timestamptz, wake uuid[], publish text[])
LANGUAGE plpgsql SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off'
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := COALESCE(p_now, clock_timestamp());
BEGIN
  RETURN QUERY
  WITH kind AS MATERIALIZED (
    SELECT kind.number, kind.queue, kind.priority, kind.on_limit, kind.placement, lane.id AS lane_id, lane.key_ids,
           kind.soonest
      FROM json_to_recordset(p_kinds)
           AS kind (number int, queue text, priority smallint, on_limit text, names text[], placement jsonb,
                    soonest timestamptz)
     CROSS JOIN LATERAL @lane_of(kind.queue, kind.priority, kind.on_limit, kind.names) AS lane
  ), first AS MATERIALIZED (
    SELECT nextval('dispatcher_call_position') AS position
      FROM kind
    HAVING bool_and(kind.lane_id IS NOT NULL OR kind.placement IS NOT NULL)
  ), noted AS (
    INSERT INTO dispatcher_note (at, lane_id, position)
    SELECT clock_timestamp(), kind.lane_id, first.position
      FROM first
     CROSS JOIN kind
     WHERE kind.lane_id IS NOT NULL AND kind.soonest <= v_now
  )
  INSERT INTO dispatcher_callqueue AS called
         (id, position, lane_id, placement, task, args, kwargs, call_data, meta, headers, options, queue, priority,
          on_limit, costs, key_costs, state, retry, scheduled_at, expires_at, attempt, created_at, errors)
  SELECT draft.id, draft.position, kind.lane_id, CASE WHEN kind.lane_id IS NULL THEN kind.placement END,
         draft.task, draft.args, draft.kwargs, draft.call_data, draft.meta, draft.headers, draft.options,
         kind.queue, kind.priority, kind.on_limit, draft.costs,
         CASE WHEN kind.lane_id IS NOT NULL AND draft.costs <> '{}' THEN @costs_of_keys(draft.costs, kind.key_ids) END,
         CASE WHEN draft.is_pending THEN 'pending'
              WHEN COALESCE(draft.scheduled_at, v_now + draft.scheduled_in) > v_now THEN 'scheduled'
              ELSE 'available' END,
         draft.retry, COALESCE(draft.scheduled_at, v_now + draft.scheduled_in),
         COALESCE(draft.expires_at, v_now + draft.expires_in), 0, v_now, '[]'
    FROM (SELECT nextval('dispatcher_call_position') AS position, call.id, call.kind, call.task, call.args,
                 call.kwargs, call.call_data, call.meta, call.headers, call.options, call.costs, call.retry,
                 call.scheduled_at, call.expires_at, call.scheduled_in, call.expires_in, call.is_pending
            FROM first
           CROSS JOIN json_to_recordset(p_calls)
              AS call (id uuid, kind int, task text, args jsonb, kwargs jsonb, call_data jsonb, meta jsonb,
                       headers jsonb, options jsonb, costs jsonb, retry jsonb, scheduled_at timestamptz,
                       expires_at timestamptz, scheduled_in interval, expires_in interval, is_pending bool)) AS draft
    JOIN kind ON kind.number = draft.kind
  RETURNING called.id, called.position, called.lane_id, called.key_costs, called.state::text, called.created_at,
            called.scheduled_at, called.expires_at, NULL::uuid[], NULL::text[];
  IF FOUND AND p_firsts IS NOT NULL THEN
    RETURN QUERY
    SELECT NULL::uuid, NULL::bigint, NULL::bigint, NULL::int[], NULL::text, NULL::timestamptz, NULL::timestamptz,
           NULL::timestamptz, COALESCE(array_agg(woken.worker_id) FILTER (WHERE woken.worker_id IS NOT NULL), '{}'),
           COALESCE(array_agg(woken.queue) FILTER (WHERE woken.is_published), '{}')
      FROM @wake_queues(@sent_queues(p_firsts), p_silence, p_is_eager) AS woken;
  END IF;
END $$;
