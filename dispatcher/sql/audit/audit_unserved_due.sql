-- audit_unserved_due: the first of the calls whose scheduled time passed a while ago and that are not in their lanes.
-- Relies on the index call_due.
WITH late AS MATERIALIZED (
    SELECT call.id, call.state, call.queue, call.scheduled_at, call.xmin::text AS version
      FROM dispatcher_callqueue AS call
     WHERE call.state IN ('scheduled', 'retryable')
       -- A subquery is asked once, so the index can be used: the clock by itself would be asked for every row.
       AND call.scheduled_at < (SELECT {{now}} - %(late)s::interval)
     ORDER BY call.scheduled_at
     LIMIT 100
)
SELECT 'call ' || id AS what, id::text AS target, version,
       json_build_object('state', state, 'queue', queue, 'scheduled_at', scheduled_at) AS facts,
       count(*) OVER () AS total
  FROM late
 ORDER BY scheduled_at, id
 LIMIT %(most)s::int
