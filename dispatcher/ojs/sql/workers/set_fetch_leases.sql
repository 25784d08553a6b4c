-- set_fetch_leases: set the leases of calls that a worker has just fetched; they end at the attempt's timeout, if it
-- has one.
-- `lease` is what the worker asked for, `usual` the setting; the call's own comes between them.
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
