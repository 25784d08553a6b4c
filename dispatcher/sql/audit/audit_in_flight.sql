-- audit_in_flight: what does not hold of calls and of their slots, each finding with the name of its check:
-- wrong_fields: the fields of a call do not go together. Of those in flight, those that are due without a time, those
-- that have finished without an end, and the newest `newest` of all. Of ended calls and of the backlog the others are
-- not read: there may be millions. No constraint says this, since each would be checked at every write;
-- two_tickets: more than one call has the ticket;
-- lease_unrecovered: the lease ran out so long ago that the recovery must have found the call. Not where the database,
-- or the recovery, has come back only now: heartbeats then get the time to speak up;
-- a slot without a call: its call is not in flight, or is gone: room that is never freed;
-- a call without a slot: no limit counts it, and no lease ends it;
-- wrong_slots: the slots of a call are not those of the keys that it spends, or not at their cost. The key of the queue
-- may have been made after the take; it is seen by others only when the transaction that made it commits, for which it
-- is given a minute. Of a group, a call holds the key that was chosen, too. "-" is the slot of a call without keys. A
-- call has one slot for each key, of a cost of 1 at the least.
-- Slots are few, live only while their call is in flight, and are read whole, as are the calls in flight: one look for
-- each slot would cost ten times as much. An EXCEPT is hashed or sorted, whatever the statistics say.
-- Relies on call_in_flight, call_due, call_ended, slot_call and the primary key of calls, which is in order of time.
WITH {{clock}}, flown AS MATERIALIZED (
    SELECT call.id, call.task, call.queue, call.state, call.ticket, call.dispatched_at, call.lane_id, call.costs,
           call.chosen_keys
      FROM dispatcher_callqueue AS call
     WHERE call.state IN ('dispatched', 'active')
), looked_at AS MATERIALIZED (
    SELECT flown.id FROM flown
     UNION
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.state IN ('scheduled', 'retryable') AND call.scheduled_at IS NULL
     UNION
    SELECT call.id
      FROM dispatcher_callqueue AS call
     WHERE call.finished_at IS NOT NULL
       AND call.state IN ('scheduled', 'pending', 'available', 'dispatched', 'active', 'retryable')
     UNION
    (SELECT call.id FROM dispatcher_callqueue AS call ORDER BY call.id DESC LIMIT %(newest)s::int)
), written AS MATERIALIZED (
    SELECT call.id, call.state, call.queue,
           ARRAY_REMOVE(ARRAY[
             CASE WHEN call.state NOT IN ('scheduled', 'pending', 'available', 'dispatched', 'active', 'retryable',
                                          'completed', 'cancelled', 'discarded') THEN 'state' END,
             CASE WHEN (call.state IN ('dispatched', 'active')) <> (call.ticket IS NOT NULL) THEN 'ticket' END,
             CASE WHEN call.state = 'active' AND call.started_at IS NULL THEN 'started_at' END,
             CASE WHEN (call.state IN ('completed', 'cancelled', 'discarded')) <> (call.finished_at IS NOT NULL)
                  THEN 'finished_at' END,
             CASE WHEN call.state IN ('scheduled', 'retryable') AND call.scheduled_at IS NULL THEN 'scheduled_at' END,
             CASE WHEN (call.lane_id IS NULL) <> (call.placement IS NOT NULL) THEN 'placement' END,
             CASE WHEN call.state IN ('dispatched', 'active') AND call.lane_id IS NULL THEN 'lane' END,
             CASE WHEN call.oversized_key_id IS NOT NULL AND call.state <> 'available' THEN 'oversized_key' END,
             CASE WHEN (call.oversized_key_id IS NULL) <> (call.oversized_cost IS NULL) THEN 'oversized_cost' END,
             CASE WHEN (call.state = 'discarded') <> (call.reason IS NOT NULL) THEN 'reason' END], NULL) AS fields
      FROM dispatcher_callqueue AS call
     WHERE call.id = ANY (ARRAY(SELECT looked_at.id FROM looked_at))
), silent AS MATERIALIZED (
    SELECT slot.call_id, max(slot.lease_until) AS lease_until
      FROM dispatcher_slot AS slot
     GROUP BY slot.call_id
), astray AS MATERIALIZED (
    SELECT slot.call_id FROM dispatcher_slot AS slot
    EXCEPT
    SELECT flown.id FROM flown
), held AS MATERIALIZED (
    SELECT flown.id, flown.costs, flown.chosen_keys, lane.key_ids, queue_key.id AS queue_key_id,
           queue_key.name AS queue_key_name,
           queue_key.created_at > flown.dispatched_at - interval '1 minute' AS is_new
      FROM flown
     CROSS JOIN LATERAL (
           SELECT stored.key_ids FROM dispatcher_lane AS stored WHERE stored.id = flown.lane_id LIMIT 1) AS lane
      LEFT JOIN LATERAL (
           SELECT key.id, key.name, key.created_at
             FROM dispatcher_ratelimitkey AS key
            WHERE key.name = 'queue:' || flown.queue
            LIMIT 1) AS queue_key ON true
), compared AS MATERIALIZED (
    SELECT held.id, held.is_new, named.spends || of_groups.spends AS spends,
           CASE WHEN held.queue_key_id IS NULL THEN '{}'::jsonb
                ELSE jsonb_build_object(held.queue_key_name, COALESCE((held.costs ->> held.queue_key_name)::int, 1))
           END AS of_queue,
           slots.holds, slots.are_sound
      FROM held
     CROSS JOIN LATERAL (
           SELECT COALESCE(jsonb_object_agg(key.name, COALESCE((held.costs ->> key.name)::int, 1)), '{}') AS spends
             FROM dispatcher_ratelimitkey AS key
            WHERE key.id = ANY (held.key_ids)) AS named
     CROSS JOIN LATERAL (
           SELECT COALESCE(jsonb_object_agg(COALESCE(held.chosen_keys ->> key.name, 'one of ' || key.name),
                                            COALESCE((held.costs ->> key.name)::int, 1)), '{}') AS spends
             FROM dispatcher_ratelimitkey AS key
            WHERE key.id = ANY (held.key_ids) AND key.is_group) AS of_groups
     CROSS JOIN LATERAL (
           SELECT jsonb_object_agg(mine.name, mine.cost) AS holds, bool_and(mine.is_one AND mine.cost >= 1) AS are_sound
             FROM (SELECT CASE WHEN slot.key_id IS NULL THEN '-'
                               ELSE COALESCE(key.name, 'key ' || slot.key_id) END AS name,
                          sum(slot.cost) AS cost, count(*) = 1 AS is_one
                     FROM dispatcher_slot AS slot
                     LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
                    WHERE slot.call_id = held.id
                    GROUP BY 1) AS mine) AS slots
     WHERE slots.holds IS NOT NULL
), judged AS MATERIALIZED (
    SELECT id, holds, are_sound, is_new, COALESCE(NULLIF(spends || of_queue, '{}'), '{"-": 1}') AS wanted,
           COALESCE(NULLIF(spends, '{}'), '{"-": 1}') AS before_the_key
      FROM compared
), found AS (
    SELECT 'wrong_fields' AS name, 'call ' || written.id AS what, written.id::text AS target, '' AS version,
           json_build_object('state', written.state, 'queue', written.queue, 'fields', written.fields) AS facts
      FROM written
     WHERE written.fields <> '{}'
     UNION ALL
    SELECT 'two_tickets', 'ticket ' || flown.ticket, flown.ticket::text, '',
           json_build_object('calls', jsonb_agg(flown.id ORDER BY flown.id))
      FROM flown
     GROUP BY flown.ticket
    HAVING count(*) > 1
     UNION ALL
    SELECT 'lease_unrecovered', 'call ' || call.id, call.id::text, call.ticket::text,
           json_build_object('task', call.task, 'queue', call.queue, 'state', call.state,
                             'lease_until', silent.lease_until)
      FROM clock
     CROSS JOIN silent
      JOIN dispatcher_callqueue AS call ON call.id = silent.call_id AND call.state IN ('dispatched', 'active')
     WHERE silent.lease_until < clock.now - %(overdue)s::interval
       AND clock_timestamp() - pg_postmaster_start_time() > %(overdue)s::interval
       AND NOT EXISTS (SELECT
                         FROM dispatcher_leasecheck AS lease_check
                        WHERE lease_check.since > clock.now - %(overdue)s::interval)
     UNION ALL
    SELECT 'slot_without_call', 'slot of call ' || slot.call_id, slot.id::text, '',
           json_build_object('key', key.name, 'cost', slot.cost, 'state', COALESCE(call.state, 'gone'))
      FROM dispatcher_slot AS slot
      LEFT JOIN dispatcher_callqueue AS call ON call.id = slot.call_id
      LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id
     WHERE slot.call_id = ANY (ARRAY(SELECT astray.call_id FROM astray))
     UNION ALL
    SELECT 'call_without_slot', 'call ' || flown.id, flown.id::text, flown.ticket::text,
           json_build_object('task', flown.task, 'queue', flown.queue, 'state', flown.state,
                             'dispatched_at', flown.dispatched_at)
      FROM flown
     WHERE NOT EXISTS (SELECT FROM dispatcher_slot AS slot WHERE slot.call_id = flown.id)
     UNION ALL
    SELECT 'wrong_slots', 'call ' || judged.id, judged.id::text, '',
           json_build_object('holds', judged.holds, 'wanted', judged.wanted)
      FROM judged
     WHERE NOT judged.are_sound
        OR (judged.holds <> judged.wanted AND NOT (COALESCE(judged.is_new, false)
                                                   AND judged.holds = judged.before_the_key))
), numbered AS (
    SELECT name, what, target, version, facts, count(*) OVER (PARTITION BY name) AS total,
           row_number() OVER (PARTITION BY name ORDER BY target) AS number
      FROM found
)
SELECT name, what, target, version, facts, total
  FROM numbered
 WHERE number <= %(most)s::int
 ORDER BY name, number
