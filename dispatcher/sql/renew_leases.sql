-- renew_leases: believe these calls a while longer; only those that these tickets still own.
-- A slot that somebody holds is left out: a claim renews it itself, and all others are about to free it.
UPDATE dispatcher_slot AS slot
   SET lease_until = COALESCE(%(now)s::timestamptz, clock_timestamp()) + %(lease)s::interval
  FROM (SELECT held.id
          FROM unnest(%(calls)s::uuid[], %(tickets)s::uuid[]) AS beat (call_id, ticket)
          JOIN dispatcher_callqueue AS call ON call.id = beat.call_id AND call.ticket = beat.ticket
          JOIN dispatcher_slot AS held ON held.call_id = call.id
           FOR NO KEY UPDATE OF held SKIP LOCKED) AS mine
 WHERE slot.id = mine.id
