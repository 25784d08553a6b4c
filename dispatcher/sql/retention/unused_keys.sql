-- unused_keys: those of these keys that a template has made and no person has changed, that no lane spends, and that
-- nothing has happened to for this long: no start that still counts, no pause, no block, no override.
-- Keys of queues are not among them: they count for lanes that do not name them. Nor are members of groups.
-- The caller runs it again under the locks of the rows, because the snapshot of this run may be older than them.
-- It reads all lanes, once for all keys. Relies on start_key and slot_key.
WITH {{clock}}, free AS MATERIALIZED (
    SELECT unnest(%(ids)s::bigint[]) AS id
    EXCEPT
    SELECT unnest(lane.key_ids) FROM dispatcher_lane AS lane
    EXCEPT
    SELECT unnest({{@members_of}}(key_group.name)) FROM dispatcher_ratelimitkey AS key_group WHERE key_group.is_group
)
SELECT key.id, key.name
  FROM clock
 CROSS JOIN dispatcher_ratelimitkey AS key
 WHERE key.id = ANY (ARRAY(SELECT free.id FROM free))
   AND key.is_from_template AND NOT starts_with(key.name, 'queue:')
   AND key.created_at < clock.now - %(unused)s::interval
   AND NOT key.is_paused
   AND (key.override_until IS NULL OR key.override_until < clock.now)
   AND (key.blocked_until IS NULL OR key.blocked_until < clock.now - %(unused)s::interval)
   AND NOT EXISTS (
       SELECT
         FROM (SELECT start.at, start.last_cost
                 FROM dispatcher_start AS start
                WHERE start.key_id = key.id
                ORDER BY start.key_id DESC, start.at DESC, start.total DESC
                LIMIT 1) AS newest
        WHERE newest.at >= clock.now - GREATEST(
                  %(unused)s::interval, key.rate_period + %(margin)s::interval,
                  newest.last_cost * key.throttle_period / key.throttle_limit))
   AND (SELECT slot.key_id
          FROM dispatcher_slot AS slot
         WHERE slot.key_id = key.id
         ORDER BY slot.key_id
         LIMIT 1) IS NULL
 ORDER BY key.id
