-- report_wait: which key or queue stopped the lane that a waiting call is in, since when it waits and how many go
-- before it; and of one that came back without a start, how often, until when it waits, and whether a live worker knows
-- its task. `members`: of a group, how many keys it could choose.
-- A call that costs more than a key ever allows waits alone: `oversized_for` names that key. A call that is not placed
-- has no lane yet. No row back means the call does not wait. Relies on call_waiting.
SELECT key.name AS stopped_by,
       CASE WHEN key.is_group THEN (SELECT count(*) FROM ({{members_of(key)}}) AS member) END AS members,
       COALESCE({{parked_by_worker_limit(key.per_worker, lane.id)}}, false) AS is_mixed,
       CASE WHEN lane.is_held
            THEN (SELECT spent.name
                    FROM dispatcher_ratelimitkey AS spent
                   WHERE (spent.id = ANY (lane.key_ids) OR spent.name = 'queue:' || lane.queue)
                     AND {{limit_in_force(spent.override_until > {{now}}, spent, per_worker)}} IS NOT NULL
                   ORDER BY spent.name
                   LIMIT 1) END AS limited_by,
       aside.name AS oversized_for, call.oversized_cost,
       GREATEST(call.created_at, call.scheduled_at) AS since,
       call.lane_id IS NOT NULL AS is_placed, COALESCE(lane.is_awake, false) AS is_awake,
       CASE WHEN lane.is_held THEN lane.queue END AS held_by,
       {{queue_delivery(call.queue)}} AS delivery,
       {{queue_has_worker(call.queue, {{now}})}} AS is_served,
       EXISTS (SELECT
                 FROM dispatcher_feed AS feed
                 JOIN dispatcher_worker AS worker ON worker.id = feed.worker_id
                WHERE feed.idle_at IS NOT NULL AND call.queue = ANY (feed.queues)
                  AND worker.serves_until > {{now}}) AS is_worker_idle,
       call.queue, call.task, call.returns,
       EXISTS (SELECT
                 FROM dispatcher_worker AS worker
                WHERE call.queue = ANY (worker.queues) AND (worker.tasks IS NULL OR call.task = ANY (worker.tasks))
                  AND worker.serves_until > {{now}}) AS is_known,
       CASE WHEN call.state = 'scheduled' THEN call.scheduled_at END AS until,
       (SELECT count(*)
          FROM (SELECT
                  FROM dispatcher_callqueue AS earlier
                 WHERE {{waits_in(earlier, call.lane_id)}}
                   AND earlier.position < call.position AND call.oversized_key_id IS NULL
                 LIMIT %(most)s::int) AS ahead) AS ahead,
       {{now}} AS at
  FROM dispatcher_callqueue AS call
  LEFT JOIN dispatcher_lane AS lane ON lane.id = call.lane_id
  LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = lane.parked_on_id AND call.oversized_key_id IS NULL
  LEFT JOIN dispatcher_ratelimitkey AS aside ON aside.id = call.oversized_key_id
 WHERE call.id = %(call)s::uuid AND (call.state = 'available' OR (call.state = 'scheduled' AND call.returns > 0))
