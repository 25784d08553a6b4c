-- wake_workers: see the statement of this name.
CREATE FUNCTION @wake_workers(p_calls uuid[], p_queues text[], p_silence interval, p_is_eager bool)
RETURNS TABLE (queue text, is_published bool, worker_id uuid)
LANGUAGE plpgsql SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off'
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT woken.queue, woken.is_published, woken.worker_id
    FROM @wake_queues(ARRAY(SELECT DISTINCT unnest(p_queues || @sent_queues(p_calls))), p_silence, p_is_eager) AS woken;
END $$;
