-- trim_windows: of the next parts of windows after this one, delete those that no longer count and that no start has
-- taken over for more than a lap. A slice at a time, whatever the size of the table: `last_key` and `last_place` are
-- its end, or NULL where the table ends. A part whose key was deleted goes, too.
-- Locked rows, which a start is using again, are skipped. Relies on the key of windows.
WITH slice AS MATERIALIZED (
    SELECT bucket.key_id, bucket.place
      FROM dispatcher_window AS bucket
     WHERE (bucket.key_id, bucket.place) > (%(key)s::bigint, %(place)s::bigint)
     ORDER BY bucket.key_id, bucket.place
     LIMIT %(most)s::int
), last AS MATERIALIZED (
    SELECT slice.key_id, slice.place, (SELECT count(*) FROM slice) = %(most)s::int AS is_full
      FROM slice
     ORDER BY slice.key_id DESC, slice.place DESC
     LIMIT 1
), kept AS MATERIALIZED (
    -- Key by key, or the planner would read all keys to find these.
    SELECT spent.key_id, found.longest
      FROM (SELECT DISTINCT slice.key_id FROM slice) AS spent
      LEFT JOIN LATERAL (
           SELECT {{longest_period(key)}} AS longest
             FROM dispatcher_ratelimitkey AS key
            WHERE key.id = spent.key_id
            LIMIT 1) AS found ON true
), old AS MATERIALIZED (
    SELECT bucket.key_id, bucket.place
      FROM last
     CROSS JOIN dispatcher_window AS bucket
      JOIN kept ON kept.key_id = bucket.key_id
     WHERE (bucket.key_id, bucket.place) > (%(key)s::bigint, %(place)s::bigint)
       AND (bucket.key_id, bucket.place) <= (last.key_id, last.place)
       AND (kept.longest IS NULL
            OR {{now}} - bucket.last_start_at > 4 * kept.longest)
     ORDER BY bucket.key_id, bucket.place
       FOR UPDATE OF bucket SKIP LOCKED
), deleted AS (
    DELETE FROM dispatcher_window AS bucket
     USING old
     WHERE bucket.key_id = old.key_id AND bucket.place = old.place
    RETURNING bucket.key_id
)
SELECT (SELECT count(*) FROM deleted) AS trimmed,
       (SELECT key_id FROM last WHERE is_full) AS last_key, (SELECT place FROM last WHERE is_full) AS last_place
