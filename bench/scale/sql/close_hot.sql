-- close_hot: the key of parked.sql without room again, and all of its lanes and calls behind it.
DELETE FROM dispatcher_slot
 WHERE call_id IN (SELECT id FROM dispatcher_callqueue WHERE queue = 'hot' AND state IN ('dispatched', 'active'));
UPDATE dispatcher_callqueue
   SET state = 'available', ticket = NULL, dispatched_at = NULL, published_at = NULL, started_at = NULL
 WHERE queue = 'hot' AND state IN ('dispatched', 'active');
UPDATE dispatcher_ratelimitkey
   SET concurrency = 0, is_paused = false, blocked_until = NULL, opens_at = NULL, override_until = NULL,
       override_concurrency = NULL
 WHERE name = 'hot';
UPDATE dispatcher_lane SET parked_on_id = 30000000, is_awake = false, is_held = false
 WHERE queue = 'hot' AND parked_on_id IS DISTINCT FROM 30000000;
