-- report_wait: where the lane of a waiting call is, since when the call waits and how many go before it; and of one
-- that came back without a start, how often, until when it waits, and whether a live worker knows its task.
-- `stopped_by`: the key that the lane is parked on; `has_room` and `opens_at` are for the first call of the lane.
-- `limited_by`: a key with a limit per worker, where the lane waits for a worker that holds less of it.
-- A call that costs more than a key ever allows waits alone: `oversized_for` names that key. A call that is not placed
-- has no lane yet. No row back means the call does not wait. Relies on call_waiting.
SELECT stopping.name AS stopped_by, stopping.members, COALESCE(stopping.has_room, false) AS has_room,
       stopping.opens_at,
       CASE WHEN site.place = -1
            THEN (SELECT spent.name
                    FROM dispatcher_ratelimitkey AS spent
                   WHERE (spent.id = ANY (lane.key_ids) OR spent.name = 'queue:' || lane.queue)
                   ORDER BY {{limit_in_force(spent.override_until > clock.now, spent, per_worker)}} IS NULL, spent.name
                   LIMIT 1) END AS limited_by,
       aside.name AS oversized_for, call.oversized_cost,
       GREATEST(call.created_at, call.scheduled_at) AS since,
       call.lane_id IS NOT NULL AS is_placed,
       {{queue_delivery(call.queue)}} AS delivery,
       {{queue_has_worker(call.queue, clock.now)}} AS is_served,
       {{queue_has_idle(call.queue, clock.now)}} AS is_worker_idle,
       {{queue_is_full(call.queue)}} AS is_full,
       call.queue, call.task, call.returns,
       {{task_has_worker(call.queue, call.task, clock.now)}} AS is_known,
       CASE WHEN call.state = 'scheduled' THEN call.scheduled_at END AS until,
       (SELECT count(*)
          FROM (SELECT
                  FROM dispatcher_callqueue AS earlier
                 WHERE {{waits_in(earlier, call.lane_id)}}
                   AND earlier.position < call.position AND call.oversized_key_id IS NULL
                 LIMIT %(most)s::int) AS ahead) AS ahead,
       clock.now AS at
  FROM (SELECT {{now}} AS now) AS clock
 CROSS JOIN dispatcher_callqueue AS call
  LEFT JOIN dispatcher_lane AS lane ON lane.id = call.lane_id
  LEFT JOIN dispatcher_lanesite AS site ON site.lane_id = call.lane_id AND call.oversized_key_id IS NULL
  LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = site.place
  LEFT JOIN LATERAL (
       SELECT COALESCE((first.costs ->> key.name)::int, 1) AS cost
         FROM {{first_call_in(site.lane_id)}} AS first) AS head ON key.id IS NOT NULL
  LEFT JOIN LATERAL (
       SELECT allowed.name,
              {{has_room(allowed, head.cost, clock.now)}}
              AND (NOT allowed.is_group OR COALESCE(several.have_room, false)) AS has_room,
              COALESCE({{@opening}}(allowed, head.cost, %(horizon)s::interval, %(margin)s::interval,
                                    %(ramp)s::interval, clock.now), several.opens_at) AS opens_at,
              CASE WHEN allowed.is_group THEN several.keys END AS members
         FROM {{@room}}(ARRAY[key.id], NULL, clock.now, %(margin)s::interval, %(ramp)s::interval) AS allowed
        CROSS JOIN LATERAL (
              SELECT count(*) AS keys, bool_or({{has_room(member, head.cost, clock.now)}}) AS have_room,
                     min({{@opening}}(member, head.cost, %(horizon)s::interval, %(margin)s::interval,
                                      %(ramp)s::interval, clock.now)) FILTER (WHERE member.fits >= head.cost)
                         AS opens_at
                FROM {{@room}}(CASE WHEN allowed.is_group THEN {{@members_of}}(allowed.name) ELSE '{}' END, NULL,
                               clock.now, %(margin)s::interval, %(ramp)s::interval) AS member) AS several
       ) AS stopping ON key.id IS NOT NULL
  LEFT JOIN dispatcher_ratelimitkey AS aside ON aside.id = call.oversized_key_id
 WHERE call.id = %(call)s::uuid AND (call.state = 'available' OR (call.state = 'scheduled' AND call.returns > 0))
