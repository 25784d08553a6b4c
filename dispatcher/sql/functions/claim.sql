-- claim: start one attempt of a call that was dispatched, if its ticket holds it. The start is the moment that counts
-- for windows and throttles, so it is stamped here, under the locks of the keys that count starts; no other is locked.
-- Returns when it may start, or why not: `closed` (a key was paused or blocked since), `expired`, `revoked`, `early`
-- (its start is more than `p_ahead` away) or `busy` (a transaction keeps its row or a key locked). No row: the ticket
-- was used or replaced. A claim whose answer was lost gets its start again.
-- `p_ahead` NULL: the attempt is over, and a crash of the database has lost its claim: it counts, whatever stops it.
-- Locks the call, then these keys in order of id. It waits for a lock no longer than lock_timeout: it would hold a
-- process.
CREATE FUNCTION @claim(p_call uuid, p_ticket uuid, p_claim uuid, p_worker uuid, p_ahead interval, p_tuning @tuning,
    p_now timestamptz)
RETURNS TABLE (start_at timestamptz, refused text, attempt int, retry jsonb, queue text, is_paced bool, is_counted bool,
    at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off'
SET lock_timeout = '20ms' SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  v_call record;
  v_keys @key_room[];
  v_ids bigint[];
  v_costs int[];
BEGIN
  BEGIN
    SELECT call.state, call.started_at, call.attempt, call.retry, call.queue, call.expires_at, call.is_revoked
      INTO v_call
      FROM dispatcher_callqueue AS call
     WHERE call.id = p_call AND call.ticket = p_ticket
       AND (call.state = 'dispatched' OR (call.state = 'active' AND call.claim = p_claim))
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT array_agg(slot.key_id), array_agg(slot.cost) INTO v_ids, v_costs
      FROM dispatcher_slot AS slot WHERE slot.call_id = p_call AND slot.key_id IS NOT NULL;
    PERFORM FROM dispatcher_ratelimitkey AS key
      WHERE key.id = ANY (v_ids)
        AND (@counts(key.rate_limit, key.override_rate_limit, key.throttle_limit, key.override_throttle_limit)
             OR key.is_observed OR @is_member(key.name, key.is_group))
      ORDER BY key.id
        FOR NO KEY UPDATE;
  EXCEPTION WHEN lock_not_available THEN
    refused := 'busy';
    at := COALESCE(p_now, clock_timestamp());
    RETURN NEXT;
    RETURN;
  END;
  at := COALESCE(p_now, clock_timestamp());
  queue := v_call.queue;
  -- What `room` reserves for those that are dispatched is theirs: the last start alone counts.
  SELECT array_agg(key),
         max(@paced(key.last_at + @spacing(key.last_cost, key.throttle_limit, key.throttle_period),
                    v_costs[array_position(v_ids, key.id)], key.throttle_limit, key.throttle_period, at,
                    p_tuning.lead)),
         COALESCE(bool_or(key.rate_limit IS NOT NULL), false),
         CASE WHEN p_ahead IS NULL THEN NULL
              WHEN v_call.is_revoked THEN 'revoked'
              WHEN v_call.expires_at <= at THEN 'expired'
              WHEN bool_or(key.closed_until IS NOT NULL OR key.concurrency = 0)
                   OR EXISTS (SELECT FROM dispatcher_block AS block
                               WHERE block.key_id = ANY (v_ids) AND block.until > at) THEN 'closed' END
    INTO v_keys, start_at, is_counted, refused
    FROM @room(v_ids, p_worker, at, p_tuning.margin, p_tuning.ramp) AS key;
  is_paced := start_at IS NOT NULL;
  start_at := COALESCE(CASE WHEN p_ahead IS NOT NULL THEN start_at END, at);
  IF v_call.state = 'active' THEN
    start_at := v_call.started_at;
    attempt := v_call.attempt;
    retry := v_call.retry;
    refused := NULL;
    RETURN NEXT;
    RETURN;
  END IF;
  IF start_at - at > p_ahead THEN refused := COALESCE(refused, 'early'); END IF;
  IF refused IS NOT NULL THEN
    start_at := NULL;
    RETURN NEXT;
    RETURN;
  END IF;
  UPDATE dispatcher_callqueue AS call
     SET state = 'active', claim = p_claim, started_at = start_at, attempt = call.attempt + 1, returns = 0,
         published_at = COALESCE(call.published_at, at)
   WHERE call.id = p_call
  RETURNING call.attempt, call.retry INTO attempt, retry;
  UPDATE dispatcher_slot AS slot
     SET started_at = start_at, worker_id = p_worker, lease_until = start_at + p_tuning.lease
   WHERE slot.call_id = p_call;
  FOR i IN 1 .. COALESCE(cardinality(v_keys), 0) LOOP
    v_keys[i].is_counted := v_keys[i].is_counted OR @is_member(v_keys[i].name, v_keys[i].is_group);
    v_keys[i].used := v_costs[array_position(v_ids, v_keys[i].id)];
    IF v_keys[i].observed IS DISTINCT FROM NULL THEN
      v_keys[i].unstarted := v_keys[i].unstarted - v_keys[i].used;
      v_keys[i] := @observe(v_keys[i], v_keys[i].used::int, at, p_tuning);
    END IF;
    v_keys[i].last_cost := v_keys[i].used;
    v_keys[i].last_at := GREATEST(v_keys[i].last_at, start_at + p_tuning.slack);
  END LOOP;
  PERFORM @count_starts(v_keys);
  RETURN NEXT;
END $$;
