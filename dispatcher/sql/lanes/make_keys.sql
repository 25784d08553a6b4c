-- make_keys: make the keys that do not exist yet; a stored policy is never changed here.
-- One that joins a group leaves a note for the group: the next trip serves what waits for it.
-- Those with a sender were made over HTTP: who made them is recorded.
WITH made AS (
    INSERT INTO dispatcher_ratelimitkey
           (name, concurrency, per_worker, rate_limit, rate_period, throttle_limit, throttle_period, fair_by, weight,
            is_observed, is_paused, is_from_template)
    SELECT key.name, key.concurrency, key.per_worker, key.rate_limit, key.rate_period, key.throttle_limit,
           key.throttle_period, key.fair_by, key.weight, key.is_observed, false, key.is_from_template
      FROM unnest(%(name)s::text[], %(concurrency)s::int[], %(per_worker)s::int[], %(rate_limit)s::int[],
                  %(rate_period)s::interval[], %(throttle_limit)s::int[], %(throttle_period)s::interval[],
                  %(fair_by)s::text[], %(weight)s::smallint[], %(is_observed)s::bool[], %(is_from_template)s::bool[])
           AS key (name, concurrency, per_worker, rate_limit, rate_period, throttle_limit, throttle_period,
                   fair_by, weight, is_observed, is_from_template)
     ORDER BY key.name
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
SELECT made.name, 'make', left(given.sender, 255), 'http', '', '{}', given.policy
  FROM made
  JOIN unnest(%(name)s::text[], %(sender)s::text[], %(policy)s::jsonb[]) AS given (name, sender, policy)
    ON given.name = made.name AND given.sender IS NOT NULL
 ORDER BY made.name
