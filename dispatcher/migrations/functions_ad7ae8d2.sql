-- The functions of version ad7ae8d2, as a migration installs them. Written by `make functions`.

CREATE FUNCTION dispatcher_clock_ad7ae8d2() RETURNS timestamptz LANGUAGE plpgsql SET search_path FROM CURRENT
SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET jit = 'off' AS $$
BEGIN
  RETURN clock_timestamp();
END $$;
REVOKE EXECUTE ON FUNCTION dispatcher_clock_ad7ae8d2 FROM PUBLIC;
