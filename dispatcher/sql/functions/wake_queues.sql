-- wake_queues: take the idle mark of one process of each of these queues, to be notified after the commit; and say
-- whose calls are published instead: those of the broker's, and where tasks are eager of direct ones.
CREATE FUNCTION @wake_queues(p_queues text[], p_silence interval, p_is_eager bool)
RETURNS TABLE (queue text, is_published bool, worker_id uuid) LANGUAGE plpgsql AS $$
DECLARE
  v_delivery text;
BEGIN
  FOREACH queue IN ARRAY p_queues LOOP
    v_delivery := (SELECT stored.delivery FROM dispatcher_queue AS stored WHERE stored.name = queue);
    is_published := COALESCE(v_delivery, 'broker') = 'broker' OR p_is_eager AND v_delivery = 'direct';
    worker_id := NULL;
    IF NOT is_published THEN
      worker_id := @wake(queue, NULL, NULL, p_silence, clock_timestamp());
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;
