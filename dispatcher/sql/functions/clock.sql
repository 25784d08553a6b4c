-- clock: the time of the database, as a function sees it: what the tests stop must be stopped inside of functions, too.
CREATE FUNCTION @clock() RETURNS timestamptz LANGUAGE plpgsql SET search_path FROM CURRENT
SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off' AS $$
BEGIN
  RETURN clock_timestamp();
END $$;
