-- clear_opening_times: forget when keys open that no lane is parked on any more.
-- It does not wait for a pass that holds a key, since it holds others itself. Every parking numbers its key: if the
-- number under the lock is the one seen, no lane was parked since; if not, the opening is another one, and stays.
WITH seen AS MATERIALIZED (
    SELECT key.id, key.opens_at, key.admissions
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (%(keys)s::bigint[]) AND key.opens_at IS NOT NULL
       AND {{first_parked_lane(key.id)}} IS NULL
), locked AS MATERIALIZED (
    SELECT key.id, key.opens_at, key.admissions
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (ARRAY(SELECT seen.id FROM seen))
     ORDER BY key.id
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dispatcher_ratelimitkey AS key
   SET opens_at = NULL
 -- Arrays, here and above: joined, the planner would read all keys to find these.
 WHERE key.id = ANY (ARRAY(SELECT locked.id
                             FROM locked
                             JOIN seen USING (id, opens_at, admissions)))
