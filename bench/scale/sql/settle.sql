-- settle: end what the figure before has left in flight or ready, so that it changes none of the later ones.
-- A busy tenant keeps a call that runs: the one that was dispatched next is claimed. What else is in flight was not part of
-- the system, which has leases of ten days; what waits in lanes that are ready was not either.
WITH next AS (
    UPDATE dispatcher_slot AS slot
       SET lease_until = clock_timestamp() + interval '10 days', started_at = clock_timestamp()
     WHERE slot.key_id % 2 = 1 AND slot.key_id <= :tenants AND slot.lease_until < clock_timestamp() + interval '9 days'
    RETURNING slot.call_id
)
UPDATE dispatcher_callqueue AS call
   SET state = 'active', published_at = dispatched_at, started_at = clock_timestamp()
 WHERE call.id IN (SELECT call_id FROM next) AND call.state IN ('dispatched', 'active');

WITH left_over AS (
    DELETE FROM dispatcher_slot AS slot WHERE slot.lease_until < clock_timestamp() + interval '9 days' RETURNING slot.call_id
)
DELETE FROM dispatcher_callqueue WHERE id IN (SELECT call_id FROM left_over);

DELETE FROM dispatcher_callqueue AS call
 USING dispatcher_lanesite AS site
 WHERE site.place = 0 AND site.queue NOT IN ('awake', 'q23') AND call.lane_id = site.lane_id
   AND call.state = 'available' AND call.oversized_key_id IS NULL;
UPDATE dispatcher_lanesite SET place = NULL WHERE place = 0 AND queue NOT IN ('awake', 'q23');
DELETE FROM dispatcher_note;
