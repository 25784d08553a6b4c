-- close_openings: forget when keys open that no lane is parked on any more.
-- It does not wait for a pass that holds a key, since it holds others itself. Every parking numbers its key: if the
-- number under the lock is the one seen, no lane was parked since; if not, the opening is another one, and stays.
WITH seen AS MATERIALIZED (
    SELECT key.id, key.opens_at, key.admissions
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id = ANY (%(keys)s::bigint[]) AND key.opens_at IS NOT NULL
       AND NOT EXISTS (SELECT FROM dispatcher_lane AS lane WHERE lane.parked_on_id = key.id)
), locked AS MATERIALIZED (
    SELECT key.id, key.opens_at, key.admissions
      FROM dispatcher_ratelimitkey AS key
     WHERE key.id IN (SELECT id FROM seen)
     ORDER BY key.id
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dispatcher_ratelimitkey AS key
   SET opens_at = NULL
  FROM locked
  JOIN seen ON seen.id = locked.id AND seen.opens_at = locked.opens_at AND seen.admissions = locked.admissions
 WHERE key.id = locked.id
