-- mark_waiting: mark a fetch as idle: who makes a lane of these queues ready, or leaves it the room of a key, takes
-- the mark (see the function wake). Returns in how long a key opens on which a lane of theirs is parked: the trip that
-- parked it, and knew, may have been another's. Of the next 100 notes: with more of them others come for the rest.
INSERT INTO dispatcher_process (id, queues, idle_at)
VALUES (%(mark)s::uuid, %(queues)s::text[], clock_timestamp())
RETURNING (SELECT min(next.at)
             FROM (SELECT note.at, note.key_id FROM dispatcher_note AS note ORDER BY note.at LIMIT 100) AS next
            WHERE EXISTS (SELECT
                            FROM dispatcher_lanesite AS site
                           WHERE site.place = next.key_id AND site.queue = ANY (%(queues)s::text[])))
          - clock_timestamp() AS opens_in
