-- hold_pulled: give the calls that one worker has just fetched their leases; they end with the attempt's time, if it
-- has one.
-- `lease` is what the worker asked for, `usual` the setting's; a call's own stands in between.
WITH {{clock}}, until AS MATERIALIZED (
    SELECT call.id, {{fetch_lease_end(call, clock.now)}} AS ends_at
      FROM clock
     CROSS JOIN dispatcher_callqueue AS call
     WHERE call.id = ANY (%(calls)s::uuid[]) AND call.state = 'active'
)
UPDATE dispatcher_slot AS slot
   SET lease_until = until.ends_at, pulled_until = until.ends_at, worker_id = %(worker)s::uuid
  FROM until
 WHERE slot.call_id = until.id
