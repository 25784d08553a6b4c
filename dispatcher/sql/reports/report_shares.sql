-- report_shares: the shares that take turns on these keys, of each priority: those with lanes that are parked there,
-- and those that have started more than is due to them. `lanes` counts those that are parked, `ahead` is how much cost
-- by weight 1 a share is ahead of the key's clock: what waits in its line is paid for. Share NULL: calls without a key
-- of the template. Locks nothing. Relies on share_key and lanesite_place.
WITH fair AS MATERIALIZED (
    SELECT key.id, key.name, key.fair_by FROM dispatcher_ratelimitkey AS key
     WHERE key.name = ANY (%(names)s::text[]) AND key.fair_by IS NOT NULL
), parked AS MATERIALIZED (
    SELECT fair.id AS key_id, lane.priority, COALESCE(share.id, 0) AS share_id, count(*) AS lanes,
           min(site.served_at) AS first
      FROM fair
     CROSS JOIN LATERAL (
           SELECT site.lane_id, site.served_at
             FROM dispatcher_lanesite AS site
            WHERE site.place = fair.id AND site.last_served_at IS NOT NULL
            ORDER BY site.queue, site.priority DESC, site.served_at, site.lane_id
           OFFSET 0) AS site
      JOIN dispatcher_lane AS lane ON lane.id = site.lane_id
      LEFT JOIN LATERAL (
           SELECT key.id
             FROM dispatcher_ratelimitkey AS key
            WHERE (key.id = ANY (lane.key_ids) OR key.name = 'queue:' || lane.queue) AND key.id <> fair.id
              AND starts_with(key.name, rtrim(fair.fair_by, '*'))
            ORDER BY key.name COLLATE "C"
            LIMIT 1) AS share ON true
     GROUP BY fair.id, lane.priority, COALESCE(share.id, 0)
)
SELECT fair.name AS key, COALESCE(stored.priority, parked.priority) AS priority, named.name AS share,
       COALESCE(named.weight, 1) AS weight, COALESCE(parked.lanes, 0) AS lanes,
       ((COALESCE(extract(epoch FROM parked.first) * 1000000, stored.next) - clock.next)::float8 / 100000) AS ahead
  FROM fair
 CROSS JOIN LATERAL (
       SELECT share.priority, share.share_id, share.next
         FROM dispatcher_share AS share
        WHERE share.key_id = fair.id AND share.share_id >= 0) AS stored
  LEFT JOIN parked
    ON parked.key_id = fair.id AND parked.priority = stored.priority AND parked.share_id = stored.share_id
 CROSS JOIN LATERAL (
       SELECT COALESCE((SELECT share.next FROM dispatcher_share AS share
                         WHERE share.key_id = fair.id AND share.priority = stored.priority AND share.share_id = -1
                         LIMIT 1), 7258118400000000) AS next) AS clock
  LEFT JOIN dispatcher_ratelimitkey AS named ON named.id = stored.share_id
 WHERE parked.lanes > 0 OR stored.next > clock.next
 ORDER BY fair.name, priority DESC, lanes DESC, named.name, stored.share_id
 LIMIT %(most)s::int
