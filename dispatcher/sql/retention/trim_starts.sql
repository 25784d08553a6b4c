-- trim_starts: of the next keys after this one, delete the starts that no window of the key counts any more, never the
-- newest: it holds the running total, and the throttle follows it. All of a key that is gone.
-- Up to `most` starts of `most_keys` keys; `last` is where the next look goes on, or 0 where the table ends. Hops from
-- key to key on the index start_key, and reads of each no more than it deletes.
WITH RECURSIVE {{clock}},
{{hops(hop, dispatcher_start, key_id, true, %(key)s::bigint, hop.number < %(most_keys)s::int)}},
kept AS MATERIALIZED (
    SELECT hop.value AS key_id, key.id IS NULL AS is_gone, newest.at, newest.total,
           -- Kept for twice as long: in a session's time zone a day may have 23 hours.
           COALESCE(GREATEST(key.rate_period, key.override_rate_period), '0') + %(margin)s::interval AS longest
      FROM hop
     CROSS JOIN LATERAL (
           SELECT start.at, start.total
             FROM dispatcher_start AS start
            WHERE start.key_id = hop.value
            ORDER BY start.key_id DESC, start.at DESC, start.total DESC
            LIMIT 1) AS newest
      LEFT JOIN LATERAL (
           SELECT key.id, key.rate_period, key.override_rate_period
             FROM dispatcher_ratelimitkey AS key
            WHERE key.id = hop.value
            LIMIT 1) AS key ON true
), old AS MATERIALIZED (
    SELECT kept.key_id, old.row
      FROM clock
     CROSS JOIN kept
     CROSS JOIN LATERAL (
           SELECT start.ctid AS row
             FROM dispatcher_start AS start
            WHERE start.key_id = kept.key_id
              AND (kept.is_gone OR (start.at < clock.now - 2 * kept.longest
                                    AND (start.at, start.total) < (kept.at, kept.total)))
            ORDER BY start.key_id, start.at, start.total
            LIMIT %(most)s::int
              FOR UPDATE SKIP LOCKED) AS old
     LIMIT %(most)s::int
), deleted AS (
    DELETE FROM dispatcher_start AS start
     WHERE start.ctid = ANY (ARRAY(SELECT old.row FROM old))
)
SELECT count(*) AS trimmed,
       CASE WHEN count(*) = %(most)s::int THEN max(old.key_id) - 1
            WHEN (SELECT count(*) FROM hop) = %(most_keys)s::int THEN (SELECT max(hop.value) FROM hop)
            ELSE 0 END AS last
  FROM old
