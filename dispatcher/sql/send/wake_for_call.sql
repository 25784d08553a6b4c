-- wake_for_call: after the commit of a call that was sent to a direct queue, let its queue hold the lane if that
-- sleeps, and notify one idle worker: changed_lanes, hold_lanes and wake_feeds for one call, in one statement.
-- A lane that is held already is left to who serves it: they look again after their own commit. `is_unnoticed`: it is
-- held since, and no worker was idle; one that became idle meanwhile may have looked before the commit, so the sender
-- looks for it once more, after it. `keys`: the key that the lane is parked on, if no other call is before this one
-- (see changed_lanes). The commit is not waited for: what a crash of the server undoes, the sweep of a tick finds.
-- Relies on call_waiting and the primary keys.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', true) AS durability
), lane AS MATERIALIZED (
    SELECT lane.id, lane.queue, lane.key_ids, lane.parked_on_id
      FROM dispatcher_callqueue AS call
     CROSS JOIN LATERAL (
           SELECT lane.id, lane.queue, lane.key_ids, lane.parked_on_id
             FROM dispatcher_lane AS lane
            WHERE lane.id = call.lane_id AND NOT lane.is_held
            LIMIT 1) AS lane
     WHERE call.id = %(id)s::uuid
), free AS MATERIALIZED (
    SELECT lane.id
      FROM dispatcher_lane AS lane
     WHERE lane.id = (SELECT lane.id FROM lane WHERE lane.parked_on_id IS NULL)
       FOR NO KEY UPDATE SKIP LOCKED
), held AS (
    UPDATE dispatcher_lane AS lane
       SET is_held = true, is_awake = false
      FROM free
     WHERE lane.id = free.id AND lane.parked_on_id IS NULL AND NOT lane.is_held
    RETURNING lane.id
), chosen AS MATERIALIZED (
    SELECT idle.worker_id
      FROM clock
     CROSS JOIN lane
     CROSS JOIN LATERAL (
           {{idle_feed_of(lane.queue, lane.key_ids, clock.now)}}) AS idle
     -- Without a lane that is held the notification would not be sent: a CTE is computed as far as it is read.
     WHERE EXISTS (SELECT FROM held)
), {{feeds_woken(chosen)}}
SELECT ARRAY(SELECT lane.parked_on_id
               FROM lane
              WHERE lane.parked_on_id IS NOT NULL
                AND COALESCE((SELECT call.id
                                FROM dispatcher_callqueue AS call
                               WHERE {{waits_in(call, lane.id)}}
                               ORDER BY call.position
                               LIMIT 1) = %(id)s::uuid, true)) AS keys,
       EXISTS (SELECT FROM held) AND NOT EXISTS (SELECT FROM notified) AS is_unnoticed,
       clock.durability
  FROM clock
