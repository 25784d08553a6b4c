-- trim_shares: delete what shares of fair keys have got where it no longer counts: all of a key for which no lane
-- waits, or that is gone, and what is so far behind the clock that the clock counts in its place (see the function
-- shares). Up to `most`. The keys are locked, so no trip is about to write them.
WITH RECURSIVE hop AS (
    (SELECT share.key_id FROM dispatcher_share AS share ORDER BY share.key_id LIMIT 1)
     UNION ALL
    SELECT next.key_id
      FROM hop
     CROSS JOIN LATERAL (
           SELECT share.key_id FROM dispatcher_share AS share
            WHERE share.key_id > hop.key_id ORDER BY share.key_id LIMIT 1) AS next
), mine AS MATERIALIZED (
    SELECT key.id FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT hop.key_id FROM hop))
     ORDER BY key.id
       FOR NO KEY UPDATE SKIP LOCKED
), old AS (
    SELECT share.ctid AS row
      FROM hop
      LEFT JOIN mine ON mine.id = hop.key_id
     CROSS JOIN LATERAL (
           SELECT (SELECT site.lane_id FROM dispatcher_lanesite AS site
                    WHERE site.place = hop.key_id ORDER BY site.queue LIMIT 1) IS NULL AS is_idle) AS key
      JOIN dispatcher_share AS share ON share.key_id = hop.key_id
     WHERE (mine.id IS NOT NULL
            AND (key.is_idle
                 OR (share.share_id >= 0
                     AND share.next < (SELECT clock.next - 10000000 FROM dispatcher_share AS clock
                                        WHERE clock.key_id = share.key_id AND clock.priority = share.priority
                                          AND clock.share_id = -1
                                        LIMIT 1))))
        OR NOT EXISTS (SELECT FROM dispatcher_ratelimitkey AS key WHERE key.id = hop.key_id)
     LIMIT %(most)s::int
)
DELETE FROM dispatcher_share AS share WHERE share.ctid = ANY (ARRAY(SELECT old.row FROM old))
