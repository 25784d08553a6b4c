-- work: what the last busy tick dispatched has ended, ten more calls wait in each of its lanes, and these are ready.
DELETE FROM dispatcher_slot WHERE key_id BETWEEN 9000000 AND 9000009;
UPDATE dispatcher_callqueue
   SET state = 'completed', ticket = NULL, finished_at = clock_timestamp()
 WHERE lane_id BETWEEN 9000000 AND 9000009 AND state IN ('dispatched', 'active') AND queue = 'q01';
INSERT INTO dispatcher_callqueue (lane_id, queue)
SELECT lane.id, lane.queue
  FROM generate_series(1, 10) AS turn
 CROSS JOIN dispatcher_lane AS lane
 WHERE lane.id BETWEEN 9000000 AND 9000009;
UPDATE dispatcher_lanesite SET place = 0 WHERE lane_id BETWEEN 9000000 AND 9000009;
