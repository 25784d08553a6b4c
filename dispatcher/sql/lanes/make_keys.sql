-- make_keys: make the keys that do not exist yet; a stored policy is never changed here.
-- One that joins a group leaves a note for the group: the next trip serves what waits for it.
-- Those with a sender were made over HTTP: who made them is recorded.
WITH wanted AS (
    SELECT key.name, key.concurrency, key.per_worker, key.rate_limit, key.rate_period, key.throttle_limit,
           key.throttle_period, key.fair_by, key.weight, key.is_observed, key.is_from_template, key.sender,
           key.policy
      FROM unnest(%(name)s::text[], %(concurrency)s::int[], %(per_worker)s::int[], %(rate_limit)s::int[],
                  %(rate_period)s::interval[], %(throttle_limit)s::int[], %(throttle_period)s::interval[],
                  %(fair_by)s::text[], %(weight)s::smallint[], %(is_observed)s::bool[],
                  %(is_from_template)s::bool[], %(sender)s::text[], %(policy)s::jsonb[])
           AS key (name, concurrency, per_worker, rate_limit, rate_period, throttle_limit, throttle_period,
                   fair_by, weight, is_observed, is_from_template, sender, policy)
), made AS (
    INSERT INTO dispatcher_ratelimitkey
           (name, concurrency, per_worker, rate_limit, rate_period, throttle_limit, throttle_period, fair_by, weight,
            is_observed, is_paused, is_from_template)
    SELECT wanted.name, wanted.concurrency, wanted.per_worker, wanted.rate_limit, wanted.rate_period,
           wanted.throttle_limit, wanted.throttle_period, wanted.fair_by, wanted.weight,
           wanted.is_observed, false, wanted.is_from_template
      FROM wanted
     ORDER BY wanted.name
        ON CONFLICT (name) DO NOTHING
    RETURNING name
), noted AS (
    INSERT INTO dispatcher_note (at, key_id)
    SELECT DISTINCT {{now}}, joined.id
      FROM made
     CROSS JOIN LATERAL (
           SELECT key_group.id
             FROM dispatcher_ratelimitkey AS key_group
            WHERE key_group.is_group
              AND key_group.name = ANY (ARRAY(SELECT left(made.name, place) || '*'
                                                FROM generate_series(1, length(made.name)) AS place))) AS joined
     -- Reads the first entry of the index key_group, which is empty where no key is a group.
     WHERE (SELECT part.id FROM dispatcher_ratelimitkey AS part
             WHERE part.is_group ORDER BY part.name LIMIT 1) IS NOT NULL
)
INSERT INTO dispatcher_keychange (key, verb, actor, source, reason, before, after)
SELECT made.name, 'make', left(wanted.sender, 255), 'http', '', '{}', wanted.policy
  FROM made
  JOIN wanted ON wanted.name = made.name AND wanted.sender IS NOT NULL
 ORDER BY made.name
