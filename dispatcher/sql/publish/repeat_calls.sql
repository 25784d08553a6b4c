-- repeat_calls: calls to be published again: their lease ran out while, as far as anybody can know, they stand in a
-- line at the broker. The whole line may be lost, and a second delivery finds the ticket used.
-- The longer a call has stood, the longer its next lease: a line of hours costs few messages. What is lost for sure was
-- put back before (lock_expired). Calls are locked first, then slots, as every step does; a slot that another
-- transaction has locked keeps its lease.
WITH {{clock}}, silent AS MATERIALIZED (
    SELECT slot.call_id
      FROM clock
     CROSS JOIN dispatcher_slot AS slot
     WHERE slot.pulled_until IS NULL AND slot.lease_until < COALESCE(%(until)s::timestamptz, clock.now)
     GROUP BY slot.call_id
    HAVING count(slot.worker_id) = 0
), line AS MATERIALIZED (
    SELECT call.id, call.dispatched_at
      FROM silent
      JOIN dispatcher_callqueue AS call ON call.id = silent.call_id
     WHERE call.state = 'dispatched' AND call.published_at IS NOT NULL
     ORDER BY call.id
     LIMIT %(most)s::int
       FOR NO KEY UPDATE OF call SKIP LOCKED
), held AS MATERIALIZED (
    SELECT slot.id, slot.call_id
      FROM dispatcher_slot AS slot
     WHERE slot.call_id = ANY (ARRAY(SELECT line.id FROM line))
       FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
    UPDATE dispatcher_slot AS slot
       SET lease_until = clock.now + GREATEST(%(lease)s::interval, clock.now - line.dispatched_at)
      FROM clock, line, held
     WHERE slot.id = held.id AND held.call_id = line.id
)
UPDATE dispatcher_callqueue AS call
   SET published_at = NULL
  FROM line
 WHERE call.id = line.id AND call.state = 'dispatched'
RETURNING {{message_columns(call)}}
