-- claim: start one attempt of a call that was dispatched, if its ticket holds it. The start is the moment that counts
-- for windows and throttles, so it is stamped here, under the locks of the keys.
-- Returns when it may start, or why not: `closed` (a key was paused or blocked since), `expired`, `revoked`, or `early`
-- (its start is more than `p_ahead` away). No row: the ticket was used or replaced.
-- Locks the call, then its keys in order of id.
CREATE FUNCTION @claim(p_call uuid, p_ticket uuid, p_claim uuid, p_worker uuid, p_ahead interval, p_tuning @tuning,
    p_now timestamptz)
RETURNS TABLE (start_at timestamptz, refused text, attempt int, retry jsonb, is_timed bool, at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off'
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
  v_call record;
  v_keys @key_room[];
  v_ids bigint[];
  v_costs int[];
BEGIN
  SELECT call.expires_at, call.is_revoked INTO v_call
    FROM dispatcher_callqueue AS call
   WHERE call.id = p_call AND call.ticket = p_ticket AND call.state = 'dispatched'
     FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN; END IF;
  SELECT array_agg(slot.key_id), array_agg(slot.cost) INTO v_ids, v_costs
    FROM dispatcher_slot AS slot WHERE slot.call_id = p_call AND slot.key_id IS NOT NULL;
  PERFORM FROM dispatcher_ratelimitkey AS key WHERE key.id = ANY (v_ids) ORDER BY key.id FOR NO KEY UPDATE;
  v_now := COALESCE(p_now, clock_timestamp());
  at := v_now;
  SELECT array_agg(key), COALESCE(bool_or(key.is_counted), false) INTO v_keys, is_timed
    FROM @room(v_ids, p_worker, v_now, p_tuning.margin, p_tuning.ramp) AS key;
  start_at := v_now;
  FOR i IN 1 .. COALESCE(cardinality(v_keys), 0) LOOP
    IF v_keys[i].closed_until IS NOT NULL OR v_keys[i].concurrency = 0 THEN refused := 'closed'; END IF;
    IF v_keys[i].throttle_limit IS NOT NULL THEN
      -- What `room` reserves for those that are dispatched is theirs: the last start alone counts.
      start_at := GREATEST(start_at, v_now + p_tuning.lead,
        v_keys[i].last_at + @spacing(v_keys[i].last_cost, v_keys[i].throttle_limit, v_keys[i].throttle_period));
    END IF;
  END LOOP;
  refused := CASE WHEN v_call.is_revoked THEN 'revoked' WHEN v_call.expires_at <= v_now THEN 'expired'
                  WHEN refused IS NOT NULL THEN refused
                  WHEN start_at - v_now > p_ahead THEN 'early' END;
  IF refused IS NOT NULL THEN
    start_at := NULL;
    RETURN NEXT;
    RETURN;
  END IF;
  UPDATE dispatcher_callqueue AS call
     SET state = 'active', claim = p_claim, started_at = start_at, attempt = call.attempt + 1, returns = 0,
         published_at = COALESCE(call.published_at, v_now)
   WHERE call.id = p_call
  RETURNING call.attempt, call.retry INTO attempt, retry;
  UPDATE dispatcher_slot AS slot
     SET started_at = start_at, worker_id = p_worker, lease_until = start_at + p_tuning.lease
   WHERE slot.call_id = p_call;
  FOR i IN 1 .. COALESCE(cardinality(v_keys), 0) LOOP
    v_keys[i].used := v_costs[array_position(v_ids, v_keys[i].id)];
    v_keys[i].last_cost := v_keys[i].used;
    v_keys[i].last_at := GREATEST(v_keys[i].last_at, start_at);
  END LOOP;
  PERFORM @count_starts(v_keys);
  RETURN NEXT;
END $$;
