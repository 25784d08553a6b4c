-- wake_again: another waiting call in a hundred lanes of awake.sql: those asleep first, which were served last.
WITH chosen AS (
    SELECT lane_id AS id FROM dispatcher_lanesite WHERE queue = 'awake' ORDER BY place NULLS FIRST, served_at DESC, lane_id LIMIT 100
), sent AS (
    INSERT INTO dispatcher_callqueue (lane_id, queue) SELECT id, 'awake' FROM chosen
)
UPDATE dispatcher_lanesite AS site SET place = 0 FROM chosen WHERE site.lane_id = chosen.id;
