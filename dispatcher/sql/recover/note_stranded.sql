-- note_stranded: the safety net: leave notes for lanes and keys that no trip would look at. Expected: none. Of the next
-- lanes after `lane`: those that sleep over waiting calls. Of the next keys after `key` that lanes are parked on: those
-- that are unserved, as the audit finds them, and of those that are gone the lanes.
-- `most`: how many of each are looked at; `last_lane`, `last_key`: where the next look goes on.
-- A slice of lanes begins with the next lane that has calls, and is read in order of id: one that is ready or parked
-- costs next to nothing, one that sleeps a look at the index call_waiting. Keys are found by hops on lanesite_place,
-- so the number of lanes on one costs nothing.
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
),
{{hops(hop, dispatcher_lanesite, place, true, %(key)s::bigint, hop.number < %(most_keys)s::int)}},
{{keys_unserved(hop)}}, stranded AS MATERIALIZED (
    SELECT asleep.id AS lane_id, NULL::bigint AS key_id
      FROM asleep
     -- Notes have no index by lane: read once, and not at all where no lane was found.
     WHERE asleep.id NOT IN (SELECT note.lane_id FROM dispatcher_note AS note WHERE note.lane_id IS NOT NULL)
     UNION ALL
    SELECT DISTINCT NULL::bigint, unserved.key_id FROM unserved WHERE unserved.name IS NOT NULL
     UNION ALL
    SELECT left_over.lane_id, NULL
      FROM (SELECT DISTINCT unserved.key_id FROM unserved WHERE unserved.name IS NULL) AS gone
     CROSS JOIN LATERAL (
           SELECT site.lane_id FROM dispatcher_lanesite AS site WHERE site.place = gone.key_id LIMIT 100) AS left_over
), noted AS (
    INSERT INTO dispatcher_note (at, lane_id, key_id, is_forced)
    SELECT clock.now, stranded.lane_id, stranded.key_id, true FROM clock CROSS JOIN stranded
)
SELECT (SELECT count(*) FROM stranded) AS count,
       COALESCE((SELECT max(slice.id) FROM slice HAVING count(*) = %(most_lanes)s::int), 0) AS last_lane,
       COALESCE((SELECT max(hop.value) FROM hop HAVING count(*) = %(most_keys)s::int), 0) AS last_key
