-- awake: a waiting call in each of the lanes of lanes.sql, all of which are ready, in a queue of another name.
UPDATE dispatcher_lane SET queue = 'awake' WHERE queue = 'far';
UPDATE dispatcher_lanesite SET queue = 'awake', place = 0 WHERE queue = 'far';
INSERT INTO dispatcher_callqueue (lane_id, queue) SELECT id, queue FROM dispatcher_lane WHERE queue = 'awake';
ANALYZE;
