-- paced: the start that a throttle gives a call of this cost: ahead of now, so that its process is there in time.
-- NULL where the throttle spaces starts by less than 0.1 ms, and is not further ahead than that: no process keeps
-- starts so exactly, and it need not wait. p_next: when the throttle allows the next start.
CREATE FUNCTION @paced(p_next timestamptz, p_cost bigint, p_limit int, p_period interval, p_now timestamptz,
    p_lead interval) RETURNS timestamptz LANGUAGE sql STABLE AS $$
SELECT CASE WHEN p_limit IS NOT NULL
             AND (p_next > p_now + interval '0.1 milliseconds'
                  OR @spacing(p_cost, p_limit, p_period) >= interval '0.1 milliseconds')
            THEN GREATEST(p_next, p_now + p_lead) END
$$;
