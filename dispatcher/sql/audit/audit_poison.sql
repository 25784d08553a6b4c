-- audit_poison: calls of the last day that were discarded because they kill their workers. Relies on the index
-- call_reason.
SELECT 'call ' || call.id AS what, call.id::text AS target, '' AS version,
       json_build_object('task', call.task, 'queue', call.queue, 'attempt', call.attempt,
                         'finished_at', call.finished_at) AS facts,
       count(*) OVER () AS total
  FROM dispatcher_callqueue AS call
 WHERE call.reason = 'poison'
   AND call.finished_at > (SELECT {{now}} - interval '1 day')
 ORDER BY call.finished_at DESC, call.id
 LIMIT %(most)s::int
