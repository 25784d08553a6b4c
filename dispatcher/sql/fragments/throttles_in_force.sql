-- throttles_in_force: the CTEs `moment`, the time after the locks of the CTE `paced`, and `throttle`: when each
-- throttle in force allows the next start. It follows the last start, whatever that cost, at the spacing of the
-- throttle in force now.
moment AS MATERIALIZED (
    SELECT {{now}} AS now
      FROM (SELECT count(*) FROM paced) AS locked
), throttle AS MATERIALIZED (
    SELECT paced.key_id, paced.last_start_at,
           paced.last_start_at + {{throttle_spacing(paced.last_cost, force.starts, force.period)}} AS next_start_at
      FROM moment
     CROSS JOIN paced
     CROSS JOIN LATERAL (SELECT paced.override_until > moment.now AS holds) AS override
     CROSS JOIN LATERAL (
           SELECT {{limit_in_force(holds, paced, throttle_limit)}} AS starts,
                  {{limit_in_force(holds, paced, throttle_period)}} AS period) AS force
     WHERE force.starts IS NOT NULL
)
