-- drop_oldest: discard the calls that have waited longest in a queue, so that others have room in it.
-- Calls that a trip has locked are skipped: they start. Their lanes are noted: the caller dispenses after the commit.
-- Steps from call to call on the index call_of_queue, because the planner assumes that a limit given as a parameter
-- passes a tenth of the table.
WITH RECURSIVE hop AS (
    (SELECT call.id, call.position, 1 AS number
       FROM dispatcher_callqueue AS call
      WHERE call.queue = %(queue)s::text AND call.state = 'available'
      ORDER BY call.position
      LIMIT 1)
     UNION ALL
    SELECT next.id, next.position, hop.number + 1
      FROM hop
     CROSS JOIN LATERAL (
           SELECT call.id, call.position
             FROM dispatcher_callqueue AS call
            WHERE call.queue = %(queue)s::text AND call.state = 'available' AND call.position > hop.position
            ORDER BY call.position
            LIMIT 1) AS next
     WHERE hop.number < %(most)s::int
), oldest AS MATERIALIZED (
    SELECT locked.id
      FROM hop
     CROSS JOIN LATERAL (
           SELECT call.id
             FROM dispatcher_callqueue AS call
            WHERE call.id = hop.id
            LIMIT 1
              FOR NO KEY UPDATE SKIP LOCKED) AS locked
), dropped AS (
    UPDATE dispatcher_callqueue AS call
       SET state = 'discarded', reason = 'queue_full', oversized_key_id = NULL, oversized_cost = NULL,
           finished_at = clock_timestamp()
     WHERE call.id = ANY (ARRAY(SELECT oldest.id FROM oldest))
       -- Selected, and not written plainly: a partial index of such calls must not look cheaper than the primary key.
       AND call.state = (SELECT 'available')
    RETURNING call.id, call.lane_id, call.position
), {{lanes_noted(dropped, true)}}
SELECT dropped.id
  FROM dropped
