-- note_stranded: the safety net: leave notes for lanes and keys that no trip would look at. Expected: none. Of the next
-- lanes after `lane`: those that sleep over waiting calls. Of the next keys after `key` that lanes are parked on: those
-- with room for the first call of the first of them, and those that are gone (their lanes then).
-- `most`: how many of each are looked at; `last_lane`, `last_key`: where the next look goes on. What has a note that
-- will be read within `soon` is not stranded. `is_noted`: false for a look alone, as the audit's.
-- A slice of lanes begins with the next lane that has calls, and is read in order of id: one that is ready or parked
-- costs next to nothing, one that sleeps a look at the index call_waiting. Keys are found by hops on lanesite_place,
-- so the number of lanes on one costs nothing. An expired call is discarded, and not served.
WITH RECURSIVE {{clock}}, slice AS MATERIALIZED (
    SELECT lane.id
      FROM dispatcher_lane AS lane
     WHERE lane.id >= (SELECT call.lane_id
                         FROM dispatcher_callqueue AS call
                        WHERE call.state = 'available' AND call.oversized_key_id IS NULL
                          AND call.lane_id > %(lane)s::bigint
                        ORDER BY call.lane_id
                        LIMIT 1)
     ORDER BY lane.id
     LIMIT %(most_lanes)s::int
), asleep AS MATERIALIZED (
    SELECT slice.id
      FROM clock
     CROSS JOIN slice
     CROSS JOIN LATERAL (
           SELECT site.place FROM dispatcher_lanesite AS site WHERE site.lane_id = slice.id LIMIT 1) AS site
     CROSS JOIN LATERAL (
           SELECT call.id
             FROM dispatcher_callqueue AS call
            WHERE {{waits_in(call, slice.id)}} AND {{not_expired(call, clock.now)}}
            ORDER BY call.position
            LIMIT 1) AS call
     WHERE site.place IS NULL
), hop AS (
    (SELECT site.place AS id, 1 AS number
       FROM dispatcher_lanesite AS site
      WHERE site.place > GREATEST(%(key)s::bigint, 0)
      ORDER BY site.place
      LIMIT 1)
     UNION ALL
    SELECT next.place, hop.number + 1
      FROM hop
     CROSS JOIN LATERAL (
           SELECT site.place
             FROM dispatcher_lanesite AS site
            WHERE site.place > hop.id
            ORDER BY site.place
            LIMIT 1) AS next
     WHERE hop.number < %(most_keys)s::int
), key AS MATERIALIZED (
    -- Of a group the room of a member counts, too.
    SELECT hop.id, key.id IS NULL AS is_gone, COALESCE(best.room, key.room) AS room,
           COALESCE(best.fits, key.fits) AS fits
      FROM clock
     CROSS JOIN hop
      LEFT JOIN {{@room}}(ARRAY(SELECT hop.id FROM hop), NULL, clock.now, %(margin)s::interval, %(ramp)s::interval)
             AS key ON key.id = hop.id
      LEFT JOIN LATERAL (
           SELECT LEAST(key.room, max(member.room)) AS room, max(member.fits) AS fits
             FROM {{@room}}({{@members_of}}(key.name), NULL, clock.now, %(margin)s::interval, %(ramp)s::interval)
                  AS member
            WHERE key.is_group AND COALESCE(member.next_at <= clock.now, true)) AS best ON key.is_group
     WHERE key.id IS NULL OR (key.room > 0 AND COALESCE(key.next_at <= clock.now, true))
), unused AS MATERIALIZED (
    SELECT key.id
      FROM clock
     CROSS JOIN key
     CROSS JOIN LATERAL (
           SELECT lane.id, lane.key_ids, site.kept_until
             FROM dispatcher_lanesite AS site
             JOIN dispatcher_lane AS lane ON lane.id = site.lane_id
            WHERE site.place = key.id
            ORDER BY site.queue, site.priority DESC, site.served_at, site.lane_id
            LIMIT 1) AS front
     CROSS JOIN LATERAL (
           SELECT COALESCE((SELECT call.key_costs[array_position(front.key_ids, key.id)]
                              FROM dispatcher_callqueue AS call
                             WHERE {{waits_in(call, front.id)}}
                             ORDER BY call.position
                             LIMIT 1), 1) AS cost) AS head
     WHERE NOT key.is_gone AND key.room > 0 AND (key.room >= head.cost OR key.fits < head.cost)
       -- Where room is kept for the first, its workers look at the key.
       AND COALESCE(NOT isfinite(front.kept_until), true)
       AND NOT EXISTS (SELECT FROM dispatcher_note AS note
                        WHERE note.key_id = key.id AND note.at <= clock.now + %(soon)s::interval)
), stranded AS MATERIALIZED (
    SELECT asleep.id AS lane_id, NULL::bigint AS key_id
      FROM asleep
     -- Notes have no index by lane: read once, and not at all where no lane was found.
     WHERE asleep.id NOT IN (SELECT note.lane_id FROM dispatcher_note AS note WHERE note.lane_id IS NOT NULL)
     UNION ALL
    SELECT NULL, unused.id FROM unused
     UNION ALL
    SELECT left_over.lane_id, NULL
      FROM key
     CROSS JOIN LATERAL (
           SELECT site.lane_id FROM dispatcher_lanesite AS site WHERE site.place = key.id LIMIT 100) AS left_over
     WHERE key.is_gone
), noted AS (
    INSERT INTO dispatcher_note (at, lane_id, key_id, is_forced)
    SELECT clock.now, stranded.lane_id, stranded.key_id, true FROM clock CROSS JOIN stranded WHERE %(is_noted)s::bool
)
SELECT ARRAY(SELECT stranded.lane_id FROM stranded WHERE stranded.lane_id IS NOT NULL ORDER BY lane_id) AS lanes,
       ARRAY(SELECT stranded.key_id FROM stranded WHERE stranded.key_id IS NOT NULL ORDER BY key_id) AS keys,
       COALESCE((SELECT max(slice.id) FROM slice HAVING count(*) = %(most_lanes)s::int), 0) AS last_lane,
       COALESCE((SELECT max(hop.id) FROM hop HAVING count(*) = %(most_keys)s::int), 0) AS last_key
