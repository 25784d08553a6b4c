-- audit_lease_unrecovered: calls whose lease ran out so long ago that the recovery must have found them.
-- Not where the database, or the recovery, has come back only now: heartbeats then get the time to speak up.
WITH {{clock}}, silent AS MATERIALIZED (
    SELECT slot.call_id, max(slot.lease_until) AS lease_until
      FROM dispatcher_slot AS slot
     GROUP BY slot.call_id
)
SELECT 'call ' || call.id AS what, call.id::text AS target, call.ticket::text AS version,
       json_build_object('task', call.task, 'queue', call.queue, 'state', call.state,
                         'lease_until', silent.lease_until) AS facts,
       count(*) OVER () AS total
  FROM clock
 CROSS JOIN silent
  JOIN dispatcher_callqueue AS call ON call.id = silent.call_id AND call.state IN ('dispatched', 'active')
 WHERE silent.lease_until < clock.now - %(overdue)s::interval
   AND clock_timestamp() - pg_postmaster_start_time() > %(overdue)s::interval
   AND NOT EXISTS (SELECT
                     FROM dispatcher_leasecheck AS lease_check
                    WHERE lease_check.since > clock.now - %(overdue)s::interval)
 ORDER BY call.id
 LIMIT %(most)s::int
