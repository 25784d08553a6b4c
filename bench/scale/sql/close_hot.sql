-- close_hot: the key of parked.sql without room again, and all of its lanes and calls behind it.
DELETE FROM dispatcher_slot
 WHERE call_id IN (SELECT id FROM dispatcher_callqueue WHERE queue = 'hot' AND state IN ('dispatched', 'active'));
UPDATE dispatcher_callqueue
   SET state = 'available', ticket = NULL, dispatched_at = NULL, published_at = NULL, started_at = NULL
 WHERE queue = 'hot' AND state IN ('dispatched', 'active');
UPDATE dispatcher_ratelimitkey
   SET concurrency = 0, is_paused = false, blocked_until = NULL, override_until = NULL,
       override_concurrency = NULL
 WHERE name = 'hot';
DELETE FROM dispatcher_note;
UPDATE dispatcher_lanesite SET place = 30000000, kept_until = NULL
 WHERE queue = 'hot' AND place IS DISTINCT FROM 30000000;
