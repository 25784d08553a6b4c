-- settle: end what the figure before has left in flight or awake, so that it changes none of the later ones.
-- A busy tenant keeps a call that runs: the one that was handed on to is claimed. What else is in flight was not part of
-- the system, which has leases of ten days; what waits in lanes that are awake was not either.
WITH handed_on AS (
    UPDATE dispatcher_slot AS slot
       SET lease_until = clock_timestamp() + interval '10 days', started_at = clock_timestamp()
     WHERE slot.key_id % 2 = 1 AND slot.key_id <= :tenants AND slot.lease_until < clock_timestamp() + interval '9 days'
    RETURNING slot.call_id
)
UPDATE dispatcher_callqueue AS call
   SET state = 'active', published_at = dispatched_at, started_at = clock_timestamp()
 WHERE call.id IN (SELECT call_id FROM handed_on) AND call.state IN ('dispatched', 'active');

WITH left_over AS (
    DELETE FROM dispatcher_slot AS slot WHERE slot.lease_until < clock_timestamp() + interval '9 days' RETURNING slot.call_id
)
DELETE FROM dispatcher_callqueue WHERE id IN (SELECT call_id FROM left_over);

DELETE FROM dispatcher_callqueue AS call
 USING dispatcher_lane AS lane
 WHERE lane.is_awake AND lane.queue <> 'awake' AND call.lane_id = lane.id AND call.state = 'available'
   AND call.oversized_key_id IS NULL;
UPDATE dispatcher_lane SET is_awake = false WHERE is_awake AND queue <> 'awake';
