-- wake_workers: see the statement of this name.
-- A lane that is parked needs none: who opens its key finds the call. But where the call came before those that wait
-- there (it was sent earlier, and committed later), the lane is parked for another one: it is looked at again. So is a
-- lane whose note was old at the commit: trips read young notes alone.
-- A call that waits no more was found by a trip, which wakes others as far as it leaves something to do.
-- A queue whose calls are published needs a trip only if its workers may have nothing to do: where as many are on their
-- way as these have processes, each of those ends, and looks for more. Its publishers are woken as processes are that
-- take calls by themselves; `is_published`: none of them lives (or they can't be notified), so who asks dispenses.
-- The commit is not waited for: the note of the send outlasts a crash. Relies on lanesite_lane and call_waiting.
CREATE FUNCTION @wake_workers(p_calls uuid[], p_queues text[], p_silence interval, p_is_eager bool)
RETURNS TABLE (queue text, is_published bool, worker_id uuid)
LANGUAGE plpgsql SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off'
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  v_queues text[] := p_queues;
  v_sent record;
  v_delivery text;
  v_queue text;
  v_processes int;
BEGIN
  FOR v_sent IN
    -- Each by its id alone: a plan that was made while there were few calls or lanes would read them all.
    SELECT call.id, call.position, call.created_at, site.lane_id, site.queue, site.place
      FROM unnest(p_calls) AS first (id)
     CROSS JOIN LATERAL (
           SELECT called.id, called.lane_id, called.state, called.position, called.created_at
             FROM dispatcher_callqueue AS called
            WHERE called.id = first.id
            LIMIT 1) AS call
     CROSS JOIN LATERAL (
           SELECT placed.lane_id, placed.queue, placed.place
             FROM dispatcher_lanesite AS placed
            WHERE placed.lane_id = call.lane_id
            LIMIT 1) AS site
     WHERE call.state = 'available'
  LOOP
    IF v_sent.place <> 0 THEN
      CONTINUE WHEN v_sent.id <> (
        SELECT front.id
          FROM dispatcher_callqueue AS front
         WHERE front.lane_id = v_sent.lane_id AND front.state = 'available' AND front.oversized_key_id IS NULL
         ORDER BY front.position
         LIMIT 1);
    END IF;
    IF v_sent.place <> 0
       OR (v_sent.place IS NULL AND v_sent.created_at < clock_timestamp() - interval '500 milliseconds') THEN
      PERFORM set_config('synchronous_commit', 'off', true);
      INSERT INTO dispatcher_note (at, lane_id, is_forced, position)
      VALUES (clock_timestamp(), v_sent.lane_id, true, v_sent.position);
    END IF;
    IF v_sent.queue <> ALL (v_queues) THEN
      v_queues := v_queues || v_sent.queue::text;
    END IF;
  END LOOP;
  FOREACH queue IN ARRAY v_queues LOOP
    v_delivery := (SELECT stored.delivery FROM dispatcher_queue AS stored WHERE stored.name = queue);
    is_published := COALESCE(v_delivery, 'broker') = 'broker' OR p_is_eager AND v_delivery = 'direct';
    IF is_published THEN
      v_queue := queue;
      v_processes := (
        SELECT sum(worker.processes) FROM dispatcher_worker AS worker
         WHERE v_queue = ANY (worker.queues) AND worker.stopped_at IS NULL AND worker.lost_at IS NULL
           AND worker.seen_at > clock_timestamp() - p_silence);
      CONTINUE WHEN NOT p_is_eager AND v_processes <= (
        SELECT count(*) FROM (
          SELECT FROM dispatcher_callqueue AS call
           WHERE call.queue = v_queue AND call.state IN ('dispatched', 'active') AND call.state >= 'dispatched'
           LIMIT v_processes) AS call);
    END IF;
    worker_id := NULL;
    IF NOT (is_published AND p_is_eager) THEN
      worker_id := @wake(queue, NULL, NULL, p_silence, clock_timestamp());
      is_published := is_published AND worker_id IS NULL AND NOT EXISTS (
        SELECT FROM dispatcher_process AS process    -- one that is at work looks again before it rests
         WHERE queue = ANY (process.queues) AND process.worker_id IS NOT NULL
           AND NOT pg_try_advisory_xact_lock_shared(hashtextextended(process.id::text, 0)));
    END IF;
    IF worker_id IS NOT NULL THEN
      PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;
