-- queue_room: how many calls of a queue may be dispatched, of `p_want`: none, if it is not the broker's or no live
-- worker serves it. No more than `ahead` are dispatched and not claimed. Far below that bound nothing is locked; near
-- it, one trip at a time counts (NULL: another one does), and none dispatches anything before a hundredth of the bound
-- is free, so that a trip dispatches several: those that are on their way end, and each end looks again.
-- Relies on call_in_flight.
CREATE FUNCTION @queue_room(p_queue text, p_want int, p_tuning @tuning, p_now timestamptz) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
  v_room int;
BEGIN
  IF p_want <= 0
     OR (p_tuning.needs_worker AND NOT EXISTS (
           SELECT FROM dispatcher_worker AS worker
            WHERE p_queue = ANY (worker.queues) AND worker.serves_until > p_now)) THEN
    RETURN 0;
  END IF;
  FOR v_try IN 1 .. 2 LOOP
    v_room := p_tuning.ahead - (
      SELECT count(*) FROM (
        SELECT FROM dispatcher_callqueue AS call
         WHERE call.queue = p_queue AND call.state IN ('dispatched', 'active') AND call.state >= 'dispatched'
         LIMIT p_tuning.ahead) AS call);
    IF v_room < LEAST(p_want, p_tuning.ahead / 100) THEN RETURN 0; END IF;
    EXIT WHEN v_try = 2 OR v_room >= 32 * p_want;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('dispatcher.queue.' || p_queue, 0)) THEN RETURN NULL; END IF;
  END LOOP;
  RETURN LEAST(p_want, v_room);
END $$;
