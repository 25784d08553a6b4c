-- keys_unserved(hop): the CTE `unserved`: those of the keys `hop` (value) that have room for the first call of a lane
-- that is parked on them, or that are gone, and that no trip will look at, with that lane. By right such a lane waits
-- while a note names the key, or a member of it, that has been due for less than `late` and will be within `soon`;
-- while a due one makes it ready (see read_notes); and while room of the key is kept for a lane. Where it was kept in
-- vain for `soon`, workers of that queue look at the key themselves: of the queue a lane is unserved if one could take
-- its calls. Room that was left went to lanes of its queue, which are ready until a worker comes (see free_lanes): what
-- the first calls of these cost is theirs, if there is a worker. Of each queue 20 were let go at once, at the most: the
-- trips that serve them let others go. An expired call is discarded, not served.
unserved AS MATERIALIZED (
    SELECT hop.value AS key_id, key.name, front.lane_id, head.id AS call_id, head.version, cost.cost
      FROM clock
     CROSS JOIN {{hop}} AS hop
      LEFT JOIN {{@room}}(ARRAY(SELECT each.value FROM {{hop}} AS each), NULL, clock.now,
                        %(margin)s::interval, %(ramp)s::interval)
             AS key ON key.id = hop.value
      -- Of a group the room of a member counts, too.
      LEFT JOIN LATERAL (
           SELECT array_agg(member.id) AS ids, max(member.fits) AS fits,
                  max(member.room) FILTER (WHERE {{has_room(member, 1, clock.now)}}) AS room
             FROM {{@room}}({{@members_of}}(key.name), NULL, clock.now, %(margin)s::interval, %(ramp)s::interval)
                  AS member
            WHERE key.is_group) AS best ON key.is_group
     CROSS JOIN LATERAL unnest({{@parked_queues}}(hop.value)) AS parked (queue)
     CROSS JOIN LATERAL (
           SELECT site.lane_id, site.waits_from, site.priority
             FROM dispatcher_lanesite AS site
            WHERE site.place = hop.value AND site.queue = parked.queue
            ORDER BY site.priority DESC, site.served_at, site.lane_id
            LIMIT 1) AS front
      LEFT JOIN LATERAL {{first_call_in(front.lane_id)}} AS head ON true
     CROSS JOIN LATERAL (SELECT COALESCE((head.costs ->> key.name)::int, 1) AS cost) AS cost
     CROSS JOIN LATERAL (
           SELECT CASE WHEN count(*) < 20 THEN COALESCE(sum(COALESCE((first.costs ->> key.name)::int, 1)), 0)
                       ELSE key.room END AS cost
             FROM (SELECT site.lane_id
                     FROM dispatcher_lanesite AS site
                    WHERE {{has_room(key, cost.cost, clock.now)}} AND {{queue_has_taker(parked.queue, clock.now)}}
                      AND site.place = 0 AND site.queue = parked.queue AND site.priority >= front.priority
                    ORDER BY site.priority DESC, site.served_at, site.lane_id
                    LIMIT 1000) AS ready
            CROSS JOIN LATERAL (
                  SELECT lane.queue, lane.key_ids
                    FROM dispatcher_lane AS lane WHERE lane.id = ready.lane_id LIMIT 1) AS lane
             LEFT JOIN LATERAL {{first_call_in(ready.lane_id)}} AS first ON true
            WHERE {{lane_spends(lane, key)}}) AS claimed
     WHERE (key.id IS NULL
            OR ({{has_room(key, 1, clock.now)}}
                AND (NOT key.is_group OR best.room > 0)
                AND (LEAST(key.room, best.room) - claimed.cost >= cost.cost OR LEAST(key.fits, best.fits) < cost.cost)))
       AND {{not_expired(head, clock.now)}}
       AND NOT {{is_noted(key_id, hop.value || best.ids, clock.now)}}
       AND NOT EXISTS (SELECT FROM dispatcher_note AS note
                        WHERE note.lane_id = front.lane_id AND (note.is_forced OR note.position < front.waits_from)
                          AND note.at > clock.now - %(late)s::interval AND note.at <= clock.now)
       AND NOT EXISTS (SELECT FROM dispatcher_lanesite AS kept
                        WHERE kept.place = hop.value AND kept.kept_until > clock.now - %(soon)s::interval
                          AND kept.kept_until < 'infinity')
       AND (NOT EXISTS (SELECT FROM dispatcher_lanesite AS kept
                         WHERE kept.place = hop.value AND kept.queue = parked.queue AND kept.kept_until < 'infinity')
            OR {{queue_is_served(parked.queue, clock.now)}})
)
