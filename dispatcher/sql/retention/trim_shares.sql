-- trim_shares: delete what shares of fair keys have got where it no longer counts: all of a key for which no lane
-- waits, or that is gone, and what is so far behind the clock that the clock counts in its place (see the function
-- shares). Up to `most`. The keys are locked, so no trip is about to write them; a share that a user has locked stays.
WITH RECURSIVE {{hops(hop, dispatcher_share, key_id, true, 0, true)}}, mine AS MATERIALIZED (
    SELECT hop.value AS key_id, key.id IS NOT NULL AS is_mine,
           (SELECT site.lane_id FROM dispatcher_lanesite AS site
             WHERE site.place = hop.value ORDER BY site.queue LIMIT 1) IS NULL AS is_idle,
           (SELECT known.id FROM dispatcher_ratelimitkey AS known
             WHERE known.id = hop.value LIMIT 1) IS NULL AS is_gone
      FROM hop
      LEFT JOIN LATERAL (
           SELECT key.id FROM dispatcher_ratelimitkey AS key
            WHERE key.id = hop.value LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS key ON true
), old AS (
    SELECT share.ctid AS row
      FROM mine
      JOIN dispatcher_share AS share ON share.key_id = mine.key_id
     WHERE mine.is_gone
        OR (mine.is_mine
            AND (mine.is_idle
                 OR (share.share_id >= 0
                     AND share.next < (SELECT clock.next - 10000000 FROM dispatcher_share AS clock
                                        WHERE clock.key_id = share.key_id AND clock.priority = share.priority
                                          AND clock.share_id = -1
                                        LIMIT 1))))
     LIMIT %(most)s::int
       FOR UPDATE OF share SKIP LOCKED
)
DELETE FROM dispatcher_share AS share WHERE share.ctid = ANY (ARRAY(SELECT old.row FROM old))
