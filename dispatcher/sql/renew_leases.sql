-- renew_leases: believe these calls a while longer; only those that these tickets still own.
UPDATE dispatcher_slot AS slot
   SET lease_until = COALESCE(%(now)s::timestamptz, clock_timestamp()) + %(lease)s::interval
  FROM unnest(%(calls)s::uuid[], %(tickets)s::uuid[]) AS beat (call_id, ticket)
  JOIN dispatcher_callqueue AS call ON call.id = beat.call_id AND call.ticket = beat.ticket
 WHERE slot.call_id = call.id
